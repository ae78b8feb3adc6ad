# SPDX-License-Identifier: Apache-2.0
"""What makes the key of a kernel.

An entry is a directory `<name>-<source key>-<toolchain key>`. The source key covers everything but
the compilers, so a machine without a compiler finds an entry by the first part alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .. import env
from ..env import Settings
from .arch import Target
from .flags import COMPILE_FLAGS, LINK_FLAGS
from .spec import KernelSpec, check_name, key_inputs

SCHEMA = 1


def digest(value: object, length: int = 64) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:length]


def tree_digests(folder: Path) -> dict[str, str]:
    """Return relative name -> SHA-256 of the files below a folder; no path, no time.

    Pages that explain the headers (``.md``) are left out: no compiler reads them, and an edited one
    must not make every kernel stale.
    """
    digests = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            if not name.startswith(".") and not name.endswith(".md"):
                path = Path(parent, name)
                relative = path.relative_to(folder).as_posix()
                digests[relative] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


@dataclass(frozen=True)
class Request:
    """One kernel for one target: everything that goes into the key, but the compilers."""

    spec: KernelSpec
    target: Target
    inputs: Mapping[str, str]
    headers: Mapping[str, str]
    flags: tuple[str, ...]

    @classmethod
    def of(cls, spec: KernelSpec, target: Target, settings: Settings) -> Request:
        """Read what the key is made of: the spec's texts and the headers."""
        check_name(spec.name)
        headers = tree_digests(env.include_dir())
        return cls(spec, target, key_inputs(spec), headers, settings.extra_nvcc_flags)

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return self.spec.name

    @cached_property
    def sources(self) -> dict[str, str]:
        """The rendered sources; only a build needs them."""
        sources = {check_name(name): text for name, text in self.spec.sources().items()}
        if not any(name.endswith(".cu") for name in sources):
            raise ValueError(f"{self.name} has no .cu source")
        return sources

    @cached_property
    def source_key(self) -> str:
        """Key of everything but the compilers."""
        flags = [*COMPILE_FLAGS, *LINK_FLAGS, *self.target.nvcc_flags(), *self.flags]
        key = {"schema": SCHEMA, "name": self.name, "abi": self.spec.abi, "flags": flags}
        key |= {"headers": dict(self.headers), "inputs": dict(self.inputs)}
        return digest({**key, "machine": os.uname().machine}, 20)

    @property
    def folder(self) -> str:
        """Folder of the target: one for each architecture and kind of machine."""
        return f"{self.target.name}-{os.uname().machine}"

    @property
    def stem(self) -> str:
        """Name of the entry, without the compilers."""
        return f"{self.name}-{self.source_key}"
