# SPDX-License-Identifier: Apache-2.0
"""Compile the rendered kernels for the emulated machine, and run calls on them.

The emulated calls run in a process of their own, so that a finding of a sanitizer ends only that.
"""

from __future__ import annotations

import os
import re
import signal
import struct
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from guards import LAYOUTS, bits

from emulator.build import compile_program, folder, run_program, with_lines
from flashinfer_msa.env import include_dir
from flashinfer_msa.spec import TopKSelectSpec

POLICIES = ("forward", "backward", "random")
# Who chooses the kernel. "some" and "some_many" are the kernels for some rows a thread block,
# whatever the number of rows, "slices", "halves" and "halves_many" those for the longest of them,
# whatever their length, "quad" that for a quad of lanes a row; all want tokens that lie together.
# "lean", "wide", "wider" and "sixteen" are those for a row a lane or several lanes, as is "eight",
# "sixteen" where there is none. In those with a number so many thread
# blocks share a row.
FAMILIES = (
    "dispatch", "few", "many", "some", "some_many", "slices", "halves", "halves_many", "quad",
    "lean", "wide", "wider", "few2", "few4", "few8", "some4", "slices2", "slices4", "slices8",
    "halves4", "sixteen", "eight",
)  # fmt: skip
ALL_FEATURES = -1


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the op: its arguments, where its tensors lie, and how the threads take turns."""

    values: torch.Tensor  # (H, P, S)
    topk: int
    extent: int | torch.Tensor | None = None
    begin: int = 0
    end: int = 0
    layout: str = "s_contiguous"
    offset: int = 0
    family: str = "dispatch"
    policy: str = "forward"
    seed: int = 1
    features: int = ALL_FEATURES  # bits of Params::Feature in row.cuh

    def __str__(self) -> str:
        extent = self.extent
        if isinstance(extent, torch.Tensor):
            extent = f"{extent[:4].tolist()}..."
        return (
            f"{tuple(self.values.shape)} topk {self.topk} extent {extent} forced {self.begin} "
            f"{self.end} {self.layout}+{self.offset} {self.family} rows, {self.policy} "
            f"{self.seed}, features {self.features}"
        )

    @cached_property
    def scores(self) -> torch.Tensor:
        """The view that the kernel gets; what lies between its elements would win."""
        heads, blocks, tokens = self.values.shape
        strides = LAYOUTS[self.layout](heads, blocks, tokens)
        spans = zip(self.values.shape, strides, strict=True)
        size = 1 + sum((n - 1) * stride for n, stride in spans)
        memory = torch.full((size,), torch.inf, dtype=self.values.dtype)
        memory[1::2] = torch.nan
        view = memory.as_strided(self.values.shape, strides)
        heads = 1 if strides[0] == 0 else heads  # one copy in memory serves every head
        bits(view)[:heads].copy_(bits(self.values)[:heads])
        return view

    @cached_property
    def packed(self) -> bytes:
        """The case as the driver reads it."""
        heads, blocks, tokens = self.scores.shape
        memory = self.scores.as_strided((self.scores.untyped_storage().nbytes()
                                         // self.scores.element_size(),), (1,))  # fmt: skip
        per_token = isinstance(self.extent, torch.Tensor)
        extent = blocks if per_token or self.extent is None else self.extent
        header = struct.pack(
            "=17q",
            POLICIES.index(self.policy), self.seed, FAMILIES.index(self.family),
            heads, blocks, tokens, *self.scores.stride(),
            extent, self.topk, self.begin, self.end, len(memory), self.offset, per_token,
            self.features,
        )  # fmt: skip
        extents = self.extent.numpy().tobytes() if per_token else b""
        return header + bits(memory).numpy().tobytes() + extents


class Kernel(NamedTuple):
    """What a kernel asks of a multiprocessor."""

    threads: int
    storage: int  # bytes of shared memory


@dataclass
class Answers:
    """What a run of the emulator gave: an output a call, and the kernels that made it."""

    outputs: list[torch.Tensor]
    launched: list[list[str]]
    prepared: dict[str, Kernel]


class FindingError(AssertionError):
    """The emulator or a sanitizer found a fault, in call number `number`; -1: in none."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


@cache
def _unit(spec: TopKSelectSpec) -> Path:
    unit = folder() / f"{spec.name}.cpp"
    unit.write_text("\n".join([*spec.sources().values(), '#include "driver.cpp"\n']))
    return unit


@dataclass(frozen=True)
class Emulator:
    """The kernels of one spec, emulated. Compiling starts at once and goes on in the background.

    Parameters
    ----------
    spec : TopKSelectSpec
    check : str
        One of ``CHECKS``.
    include : Path, optional
        Where the kernels' headers are; the package's own if not given.
    """

    spec: TopKSelectSpec
    check: str = "races"
    include: Path = field(default_factory=include_dir)

    def __post_init__(self) -> None:
        _ = self._program

    @cached_property
    def _program(self) -> Future[Path]:
        return compile_program(_unit(self.spec), self.check, self.include)

    def run(self, calls: Sequence[Call], mutant: int = 0) -> Answers:
        """Run calls one after another.

        Raises
        ------
        FindingError
            A race, a thread that went another way, a bad access, undefined behaviour, ...
        """
        program = self._program.result()
        with tempfile.TemporaryDirectory(dir=folder()) as scratch:
            cases, answers = Path(scratch, "cases"), Path(scratch, "answers")
            cases.write_bytes(b"".join(call.packed for call in calls))
            done = run_program(program, cases, answers, mutant=mutant)
            log = done.stdout
            number = log.count("case ") - 1
            if done.returncode == -signal.SIGPROF:
                raise FindingError(f"a kernel does not end: {calls[number]}", number)
            if done.returncode != 0:
                text = with_lines(program, done.stderr)
                raise FindingError(
                    f"{self.spec.name} ended with {done.returncode} in call {number}: "
                    f"{calls[number] if number >= 0 else 'none'}\n{text}",
                    number,
                )
            flat = np.fromfile(answers, np.int32)
        return Answers(list(_split(flat, calls)), *_kernels(log))

    def run_side_by_side(self, calls: Sequence[Call]) -> Answers:
        """Run calls as `run` does, in as many processes as there are cores."""
        count = max(1, min(os.cpu_count() or 1, len(calls)))
        with ThreadPoolExecutor(count) as pool:
            parts = list(pool.map(self.run, [calls[i::count] for i in range(count)]))
        places = [(parts[i % count], i // count) for i in range(len(calls))]
        return Answers(
            [part.outputs[at] for part, at in places],
            [part.launched[at] for part, at in places],
            parts[0].prepared,
        )


def _split(flat: np.ndarray[Any, Any], calls: Iterable[Call]) -> Iterable[torch.Tensor]:
    at = 0
    for call in calls:
        heads, _, tokens = call.values.shape
        size = heads * tokens * call.topk
        yield torch.from_numpy(flat[at : at + size].copy()).reshape(tokens, heads, call.topk)
        at += size
    assert at == len(flat)


@cache
def short_name(name: str) -> str:
    """Return `RowsPerBlock<.., 1, 4, 8>` of a compiler's long name of a kernel."""
    match = re.search(r"(\w+)<(?:\w+::)*Policy<[^<>]*>([^<>]*)>", name)
    assert match, name
    return f"{match[1]}<..{match[2].rstrip()}>"


def _kernels(log: str) -> tuple[list[list[str]], dict[str, Kernel]]:
    launched: list[list[str]] = []
    prepared: dict[str, Kernel] = {}
    for line in log.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "case":
            launched.append([])
        elif kind == "launched":
            launched[-1].append(short_name(rest))
        elif kind == "prepared":
            threads, storage, name = rest.split(" ", 2)
            prepared[short_name(name)] = Kernel(int(threads), int(storage))
    return launched, prepared
