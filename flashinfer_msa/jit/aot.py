# SPDX-License-Identifier: Apache-2.0
"""Looking up kernels in the installed wheel `flashinfer-msa-aot`.

The wheel's package `flashinfer_msa_aot` is found without importing it. Its `manifest.json`:

    {"schema": 1, "package_version": "...", "source_hash": "...", "toolkit": "...",
     "machine": "x86_64",
     "artifacts": {"<spec name>": {"file": "kernels/x.so", "sha256": "...", "size": 1,
                                   "arch": ["sm80", "sm90", "ptx90"]}}}

It counts only if `source_hash` is that of our own headers and templates.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import env
from .arch import Arch, Target
from .entries import DamagedError, load_checked
from .log import logger, warn_once
from .request import digest, tree_digests
from .spec import KernelSpec

MODULE = "flashinfer_msa_aot"
MANIFEST = "manifest.json"
SCHEMA = 1


def source_hash() -> str:
    """Return the hash of all headers and templates, by relative name; no path, no time."""
    trees = {"include": tree_digests(env.include_dir())}
    return digest({**trees, "templates": tree_digests(env.template_dir())})


def parse_codes(codes: list[str]) -> Target:
    """Return the target that a manifest's `arch` list names."""
    sass: list[Arch] = []
    ptx = None
    for code in codes:
        match = re.fullmatch(r"(sm|ptx)(\d+)(\d)([af]?)", code)
        if match is None:
            raise ValueError(f"{code!r} is not an architecture")
        arch = Arch(int(match[2]), int(match[3]), match[4])
        if match[1] == "sm":
            sass.append(arch)
        else:
            ptx = arch
    return Target(tuple(sass), ptx)


def describe_artifact(library: Path, relative: str, target: Target) -> dict[str, Any]:
    """Return the manifest's entry for a library that lies at `relative` in the wheel."""
    data = library.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    return {"file": relative, "sha256": sha256, "size": len(data), "arch": list(target.codes)}


def describe_wheel(toolkit: str, artifacts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a wheel built here and now, from spec name -> artifact."""
    return {
        "schema": SCHEMA,
        "package_version": env.package_version(),
        "source_hash": source_hash(),
        "toolkit": toolkit,
        "machine": os.uname().machine,
        "artifacts": dict(sorted(artifacts.items())),
    }


@dataclass(frozen=True)
class Wheel:
    """An installed wheel of prebuilt kernels."""

    path: Path
    manifest: Mapping[str, Any]
    mismatch: str

    def find(self, spec: KernelSpec, capability: tuple[int, int]) -> Path | None:
        """Return the library that serves a spec on a GPU, or None."""
        artifact = {} if self.mismatch else self.manifest["artifacts"].get(spec.name)
        if not artifact:
            return None
        try:
            serves = parse_codes(artifact["arch"]).serves(capability)
            path = self._inside(artifact["file"])
        except (KeyError, TypeError, ValueError) as error:
            warn_once(f"{self.path}: {spec.name} is ignored: {error}")
            return None
        return path if serves and path.is_file() else None

    def _inside(self, relative: str) -> Path:
        path = Path(os.path.realpath(self.path / relative))
        if not path.is_relative_to(os.path.realpath(self.path)):
            raise ValueError(f"{relative!r} leads out of the package")
        return path

    def load(self, spec: KernelSpec, capability: tuple[int, int]) -> ctypes.CDLL | None:
        """Load a spec's library; None if it is absent or not what the manifest promises."""
        path = self.find(spec, capability)
        if path is None:
            return None
        try:
            promise = self.manifest["artifacts"][spec.name]
            return load_checked(path, promise, spec.abi, installed=True)
        except (DamagedError, KeyError) as error:
            logger.warning("prebuilt kernel %s is ignored: %s", path, error)
            return None


def find_wheel() -> Wheel | None:
    """Find the installed wheel, whether or not it matches this package."""
    try:
        spec = importlib.util.find_spec(MODULE)
    except (ImportError, ValueError):
        return None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        return None
    path = Path(folders[0])
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        mismatch = _mismatch(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        manifest, mismatch = {}, f"its {MANIFEST} cannot be read ({error})"
    if mismatch:
        warn_once(f"the prebuilt kernels in {path} are ignored: {mismatch}")
    return Wheel(path, manifest, mismatch)


def _mismatch(manifest: Mapping[str, Any]) -> str:
    if manifest["schema"] != SCHEMA or not isinstance(manifest["artifacts"], dict):
        return f"its {MANIFEST} is of another schema"
    if manifest["machine"] != os.uname().machine:
        return f"they are for {manifest['machine']}"
    if manifest["source_hash"] != source_hash():
        theirs, ours = manifest["package_version"], env.package_version()
        return (
            f"flashinfer-msa-aot {theirs} was built from other sources than flashinfer-msa {ours}; "
            "install two of the same version"
        )
    return ""
