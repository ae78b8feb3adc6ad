# SPDX-License-Identifier: Apache-2.0
"""What the loader needs to know of a kernel, and nothing more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

ABI_SYMBOL = "flashinfer_msa_abi_version"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,150}")


class KernelSpec(Protocol):
    """One specialisation of one kernel: hashable, and equal by value."""

    @property
    def name(self) -> str:
        """Name of the specialisation, safe in a file name."""

    @property
    def abi(self) -> int:
        """Value that the library's `flashinfer_msa_abi_version()` must return."""

    def sources(self) -> dict[str, str]:
        """Return file name -> CUDA text; each `.cu` is one translation unit."""


@dataclass(frozen=True)
class FileSpec:
    """A kernel whose one source file is there as it is, with nothing to specialise."""

    name: str
    path: Path
    abi: int = 1

    def sources(self) -> dict[str, str]:
        """Return the translation unit."""
        return {self.path.name: self.path.read_text()}


@runtime_checkable
class HasInputs(Protocol):
    """What a spec may offer besides, so that a warm process need not render its sources."""

    def inputs(self) -> dict[str, str]:
        """Return label -> text of all that `sources` is made of; differs whenever it would."""


def key_inputs(spec: KernelSpec) -> dict[str, str]:
    """Return the texts that stand for a spec in its key: its inputs, else its sources."""
    return spec.inputs() if isinstance(spec, HasInputs) else spec.sources()


def check_name(name: str) -> str:
    """Return `name` if it is safe as a file name, in a shell and in a ninja file."""
    if not _SAFE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a safe file name; use letters, digits, '_', '-', '.'")
    return name
