# SPDX-License-Identifier: Apache-2.0
"""check_packages.py ROOT WHEEL SDIST: every source is in both, and in the wheel's RECORD."""

from __future__ import annotations

import csv
import io
import sys
import tarfile
import zipfile
from pathlib import Path

_CUDA = ("include", "templates")
_SOURCE_TREES = ("flashinfer_msa", *_CUDA, "aot", "tests", "scripts")


def files(root: Path, *trees: str) -> set[str]:
    """Return the files below some folders of the tree, as posix paths from its root."""
    found = (path for tree in trees for path in (root / tree).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in found if "__pycache__" not in path.parts}


def fail_on(missing: set[str], where: str) -> None:
    """Exit if something is missing."""
    if missing:
        sys.exit(f"not in {where}: {', '.join(sorted(missing))}")


def main() -> None:
    """Compare tree, wheel and sdist."""
    root, wheel, sdist = map(Path, sys.argv[1:])
    wanted = files(root, "flashinfer_msa")
    wanted |= {f"flashinfer_msa/{name}" for name in files(root, *_CUDA)}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        rows = csv.reader(io.StringIO(archive.read(record).decode()))
        recorded = {row[0] for row in rows}
    fail_on(wanted - names, wheel.name)
    fail_on(names - recorded, f"the RECORD of {wheel.name}")
    alien = {name for name in names if not name.startswith("flashinfer_msa")}
    if alien:
        sys.exit(f"{wheel.name} would install beside the package: {', '.join(sorted(alien))}")

    with tarfile.open(sdist) as archive:
        packed = {name.split("/", 1)[-1] for name in archive.getnames()}
    fail_on(files(root, *_SOURCE_TREES) - packed, sdist.name)
    fail_on({"README.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml"} - packed, sdist.name)
    print(
        f"{wheel.name}: {len(names)} files, all sources there; {sdist.name}: {len(packed)} entries"
    )


if __name__ == "__main__":
    main()
