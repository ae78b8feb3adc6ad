# SPDX-License-Identifier: Apache-2.0
"""Copies of the kernel headers with faults in them, each switched on by its number at run time.

Most faults share one copy, and so one compilation. Those in constants get a copy of their own.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from flashinfer_msa.env import include_dir

_PACKAGE = "flashinfer_msa"
_SEAM = "device.cuh"
# Barriers, waits for copies and for the kernel before, and calls of functions that wrap them; not
# their definitions.
_BARRIER = re.compile(
    r"\b((Share::)?(sync\w*|(wait|commit)_\w+(<[^<>]*>)?)\(\)|wait_for_producer\([^()]*\))"
    r"(?! *(const)? *{)"
)


@dataclass(frozen=True)
class Mutation:
    """A fault: in `file`, `new` in place of `old`.

    `old` is a whole expression, or statements without a declaration if it ends in a semicolon. It
    is there exactly once, or `within` is and holds it first.
    """

    file: str
    old: str
    new: str
    within: str = ""
    fixed: bool = False  # a constant of the compiler's: it cannot be switched at run time

    def __str__(self) -> str:
        return f"{self.file}: {self.within or self.old} -> {self.new or 'nothing'}"


@dataclass(frozen=True)
class Barrier:
    """A barrier to be left out, by its place."""

    file: str
    line: int
    call: str
    start: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.call}"


Fault = Mutation | Barrier


def find_barriers(include: Path | None = None) -> list[Barrier]:
    """Return every call of a barrier in the kernel headers."""
    barriers = []
    for path in sorted((include or include_dir()).joinpath(_PACKAGE).glob("*.cuh")):
        if path.name == _SEAM:
            continue
        text = path.read_text()
        for match in _BARRIER.finditer(text):
            line_start = text.rfind("\n", 0, match.start()) + 1
            if "//" in text[line_start : match.start()]:
                continue
            line = text.count("\n", 0, match.start()) + 1
            barriers.append(Barrier(path.name, line, match[0], match.start()))
    return barriers


def _span(fault: Fault, text: str) -> tuple[int, int]:
    if isinstance(fault, Barrier):
        return fault.start, fault.start + len(fault.call)
    anchor = fault.within or fault.old
    found = text.count(anchor)
    if found != 1 or fault.old not in anchor:
        raise LookupError(f"{fault}: the text is there {found} times; bring the list up to date")
    start = text.index(anchor) + anchor.index(fault.old)
    return start, start + len(fault.old)


def _switched(fault: Fault, number: int) -> str:
    test = f"emulator::is_mutant({number})"
    if isinstance(fault, Barrier):
        return f"({test} ? void() : {fault.call})"
    if fault.fixed:
        return fault.new
    if fault.old.rstrip().endswith(";"):
        return f"if ({test}) {{ {fault.new} }} else {{ {fault.old} }}"
    return f"({test} ? ({fault.new}) : ({fault.old}))"


def write_copies(folder: Path, faults: list[Fault]) -> list[Path]:
    """Write copies of the headers under `folder`; return the one that holds each fault.

    Fault number i is switched on by the number i + 1. Faults that overlap go to different copies.
    """
    texts = {p.name: p.read_text() for p in include_dir().joinpath(_PACKAGE).glob("*.cuh")}
    layers: list[list[tuple[str, int, int, str]]] = []
    places = []
    for number, fault in enumerate(faults, 1):
        start, end = _span(fault, texts[fault.file])
        edit = (fault.file, start, end, _switched(fault, number))
        alone = isinstance(fault, Mutation) and fault.fixed
        at = len(layers) if alone else next(
            (i for i, layer in enumerate(layers) if _fits(layer, edit)), len(layers)
        )  # fmt: skip
        if at == len(layers):
            layers.append([])
        layers[at].append(edit)
        if alone:  # nothing may join it: it is on whatever the number
            layers[at].append(("", 0, 0, ""))
        places.append(folder / f"copy{at}")
    for index, layer in enumerate(layers):
        _write(folder / f"copy{index}", texts, layer)
    return places


def _fits(layer: list[tuple[str, int, int, str]], edit: tuple[str, int, int, str]) -> bool:
    file, start, end, _ = edit
    return all(name and (name != file or e <= start or end <= s) for name, s, e, _ in layer)


def _write(copy: Path, texts: dict[str, str], layer: list[tuple[str, int, int, str]]) -> None:
    shutil.copytree(include_dir(), copy)
    for file in {name for name, *_ in layer if name}:
        text = texts[file]
        for name, start, end, new in sorted(layer, key=lambda edit: -edit[1]):
            if name == file:
                text = text[:start] + new + text[end:]
        copy.joinpath(_PACKAGE, file).write_text(text)
