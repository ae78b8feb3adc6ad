# SPDX-License-Identifier: Apache-2.0
"""Print the requirements of the project and of some extras that this interpreter does not meet.

``missing.py [--quiet] [--no-project] [--imports] TORCH [EXTRA ...]``; the exit code is 1 if there
are any. It runs before anything is installed: standard library, and what pip carries.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

try:
    from pip._vendor.packaging.requirements import Requirement
except ImportError:  # a Python without pip
    from packaging.requirements import Requirement
try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def requirements(torch: str, extras: list[str], project: bool) -> Iterator[Requirement]:
    """Yield the torch requirement, then the project's and those of its extras."""
    yield Requirement(torch)
    if not project:
        return
    table: dict[str, Any] = tomllib.loads(_PYPROJECT.read_text())["project"]
    lines = list(table["dependencies"])
    for extra in extras:
        lines += table["optional-dependencies"][extra]
    for requirement in map(Requirement, lines):
        if requirement.name != table["name"] and (
            requirement.marker is None or requirement.marker.evaluate()
        ):
            yield requirement


def is_met(requirement: Requirement) -> bool:
    """Return whether a distribution of that name and version is installed."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def is_importable(requirement: Requirement) -> bool:
    """Return whether the module is there by whatever way; a compiler's packages have none."""
    name = requirement.name
    return name == "ninja" or name.startswith("nvidia-") or util.find_spec(name) is not None


def main() -> int:
    """Print what is missing and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="only the exit code")
    parser.add_argument("--no-project", action="store_true", help="torch alone")
    parser.add_argument("--imports", action="store_true", help="a module that imports will do")
    parser.add_argument("torch")
    parser.add_argument("extras", nargs="*")
    options = parser.parse_args()
    met = is_importable if options.imports else is_met
    missing = [
        str(requirement)
        for requirement in requirements(options.torch, options.extras, not options.no_project)
        if not met(requirement)
    ]
    if not options.quiet:
        print(*missing, sep="\n", end="\n" if missing else "")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
