# SPDX-License-Identifier: Apache-2.0
"""GPU architectures: the grammar of an arch list, and what a library is compiled for.

An arch list is any number of entries between blanks, commas or semicolons:

    entry   = number | name, optionally followed by "+PTX" to embed portable code as well
    number  = "9.0" | "90" | "sm_90", optionally with the suffix "a" or "f"; or "compute_90",
              which embeds the portable code alone
    name    = Turing | Ampere | Ada | Hopper | Blackwell, in any case

So the spellings of TORCH_CUDA_ARCH_LIST and FLASHINFER_CUDA_ARCH_LIST are all accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .log import warn_once

ARCH_LIST = "FLASHINFER_MSA_ARCH_LIST"
MIN_CAPABILITY = (8, 0)
_NAMED = {
    "turing": ("7.5",),
    "ampere": ("8.0", "8.6"),
    "ada": ("8.9",),
    "hopper": ("9.0",),
    "blackwell": ("10.0", "10.3", "12.0", "12.1"),
}
_DOTTED = re.compile(r"(?P<major>[1-9][0-9]?)\.(?P<minor>[0-9])(?P<suffix>[af]?)")
_PLAIN = re.compile(
    r"(?P<kind>sm_|compute_)?(?P<major>[1-9][0-9]?)(?P<minor>[0-9])(?P<suffix>[af]?)"
)


class Arch(NamedTuple):
    """One architecture; the suffix "a" or "f" asks for features that bind code to it."""

    major: int
    minor: int
    suffix: str = ""

    @property
    def number(self) -> str:
        """The architecture as nvcc writes it after `sm_`."""
        return f"{self.major}{self.minor}{self.suffix}"

    def sass_serves(self, capability: tuple[int, int]) -> bool:
        """Tell whether machine code for this architecture runs on `capability`."""
        if self.suffix == "a":
            return self[:2] == capability
        return self.major == capability[0] and self.minor <= capability[1]

    def ptx_serves(self, capability: tuple[int, int]) -> bool:
        """Tell whether the driver can compile PTX of this architecture for `capability`."""
        return self.sass_serves(capability) if self.suffix else self[:2] <= capability


class Entry(NamedTuple):
    """One entry of an arch list."""

    arch: Arch
    sass: bool
    ptx: bool

    def rank(self, capability: tuple[int, int]) -> tuple[bool, Arch] | None:
        """Return how well it serves `capability` (machine code first), or None."""
        sass = self.sass and self.arch.sass_serves(capability)
        if sass or (self.ptx and self.arch.ptx_serves(capability)):
            return sass, self.arch
        return None


@dataclass(frozen=True)
class Target:
    """What one library contains: machine code for `sass`, and PTX of `ptx` if given.

    Parameters
    ----------
    sass : tuple of (major, minor) or Arch
    ptx : (major, minor) or Arch, optional
    """

    sass: tuple[Arch | tuple[int, int], ...] = ()
    ptx: Arch | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sass", tuple(sorted({Arch(*arch) for arch in self.sass})))
        object.__setattr__(self, "ptx", None if self.ptx is None else Arch(*self.ptx))
        if not self.sass and self.ptx is None:
            raise ValueError("a target needs at least one architecture")

    @classmethod
    def of(cls, entry: Entry) -> Target:
        """Return the target that one entry of an arch list means."""
        return cls((entry.arch,) if entry.sass else (), entry.arch if entry.ptx else None)

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the one target that contains a whole arch list; of its PTX, the newest."""
        entries = parse_arch_list(text)
        ptx = [entry.arch for entry in entries if entry.ptx]
        return cls(tuple(e.arch for e in entries if e.sass), max(ptx) if ptx else None)

    def entries(self) -> tuple[Entry, ...]:
        """Return the parts, machine code first."""
        ptx = () if self.ptx is None else (Entry(Arch(*self.ptx), sass=False, ptx=True),)
        return (*(Entry(Arch(*arch), sass=True, ptx=False) for arch in self.sass), *ptx)

    @property
    def codes(self) -> tuple[str, ...]:
        """What the library holds, such as `("sm80", "sm90", "ptx90")`."""
        return tuple(f"{'sm' if e.sass else 'ptx'}{e.arch.number}" for e in self.entries())

    @property
    def name(self) -> str:
        """Name of the target in the cache."""
        return "_".join(self.codes)

    def nvcc_flags(self) -> tuple[str, ...]:
        """Return the flags that make nvcc produce exactly this."""
        return tuple(
            f"-gencode=arch=compute_{e.arch.number},"
            f"code={'sm' if e.sass else 'compute'}_{e.arch.number}"
            for e in self.entries()
        )

    def serves(self, capability: tuple[int, int]) -> bool:
        """Tell whether the library runs on a GPU of `capability`."""
        return any(entry.rank(capability) for entry in self.entries())


def _parse_entry(token: str, whole: str) -> list[Entry]:
    word = token.lower()
    ptx = word.endswith("+ptx")
    word = word.removesuffix("+ptx")
    if word in _NAMED:
        return [entry for number in _NAMED[word] for entry in _parse_number(number, ptx)]
    entries = _parse_number(word, ptx)
    if not entries:
        raise ValueError(
            f"{token!r} in the arch list {whole!r} is not an architecture; write entries like "
            "8.0, 9.0a, 8.0+PTX, sm_90, 90 or Hopper, with blanks, ',' or ';' between them "
            f"(--arch or {ARCH_LIST})"
        )
    return entries


def _parse_number(word: str, ptx: bool) -> list[Entry]:
    match = _DOTTED.fullmatch(word) or _PLAIN.fullmatch(word)
    if match is None or not 5 <= int(match["major"]) <= 20:
        return []
    portable_only = match.groupdict().get("kind") == "compute_"
    arch = Arch(int(match["major"]), int(match["minor"]), match["suffix"])
    return [Entry(arch, sass=not portable_only, ptx=ptx or portable_only)]


def parse_arch_list(text: str) -> tuple[Entry, ...]:
    """Parse an arch list; the empty list is `()`.

    Raises
    ------
    ValueError
        An entry is not an architecture; the message names it.
    """
    tokens = [token for token in re.split(r"[\s,;]+", text) if token]
    entries = (entry for token in tokens for entry in _parse_entry(token, text))
    return tuple(dict.fromkeys(entries))


def _drop_unsupported(entries: Iterable[Entry]) -> list[Entry]:
    kept = []
    for entry in entries:
        if entry.arch[:2] >= MIN_CAPABILITY:
            kept.append(entry)
        else:
            number = f"{entry.arch.major}.{entry.arch.minor}"
            warn_once(f"{ARCH_LIST}: {number} is skipped; the oldest supported GPU is 8.0")
    return kept


def resolve_target(capability: tuple[int, int], arch_list: str = "") -> Target:
    """Return what to compile for a GPU.

    Parameters
    ----------
    capability : (major, minor)
        Compute capability of the tensor's own GPU.
    arch_list : str
        If not empty, the entry that serves the GPU best is taken: machine code before PTX, then
        the newest.

    Raises
    ------
    ValueError
        The list is malformed, or no entry of it serves the GPU.
    """
    entries = parse_arch_list(arch_list)
    if not entries:
        return Target((Arch(*capability),))
    ranked = [(rank, e) for e in _drop_unsupported(entries) if (rank := e.rank(capability))]
    if not ranked:
        major, minor = capability
        raise ValueError(
            f"{ARCH_LIST}={arch_list!r} has no entry that serves this GPU ({major}.{minor}); "
            f"add {major}.{minor} to it or unset it"
        )
    return Target.of(max(ranked)[1])
