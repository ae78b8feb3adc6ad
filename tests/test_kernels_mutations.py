# SPDX-License-Identifier: Apache-2.0
"""The emulated tests can fail: each fault put into the kernels is found.

Every barrier of the headers is left out in turn; it must be missed as a race or a wrong answer,
whatever the schedule. The other faults are the usual slips (emulator/mutations.py).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock

import pytest
import torch
from emulator import ALL_FEATURES, Call, Emulator, FindingError
from emulator.mutate import Barrier, Fault, find_barriers, write_copies
from emulator.mutations import MUTATIONS
from guards import LAYOUTS
from scores import MIXTURE, draw, draw_extent

from flashinfer_msa.reference import msa_topk_select_reference
from flashinfer_msa.spec import TopKSelectSpec

SPECS = (
    TopKSelectSpec(16, "f32", None, None, "token"),
    TopKSelectSpec(64, "f16", None, None, "uniform"),
)
DTYPES = {"f32": torch.float32, "f16": torch.float16}
FORCED = ((1, 2), (0, 0), (0, 1), (3, 2))
SHAPES = {
    "few": ((2, 9, 3), (1, 70, 11), (2, 300, 3), (1, 1030, 2), (1, 4000, 1), (1, 20_000, 1)),
    "quad": ((2, 9, 33), (1, 70, 11), (1, 180, 9), (1, 192, 11), (1, 250, 9)),
    "some": ((2, 90, 9), (1, 300, 6), (1, 700, 9), (1, 2100, 6)),
    "some_many": ((2, 300, 9), (2, 600, 9)),
    "slices": ((1, 2300, 9), (1, 2112, 8)),
    "halves": ((1, 900, 6), (1, 4200, 5)),
    "halves_many": ((1, 2100, 9),),
    "many": ((2, 9, 33), (2, 70, 40), (1, 200, 11), (1, 300, 33), (1, 1100, 32)),
    "lean": ((1, 300, 33), (1, 500, 33), (1, 700, 33)),
    "few2": ((1, 300, 3), (1, 17_000, 1)),
    "few4": ((2, 700, 2),),
    "some4": ((1, 600, 6), (2, 300, 3)),
    "halves4": ((1, 2300, 9),),
    "slices2": ((1, 300, 9), (1, 2300, 9)),
    "wider": ((2, 70, 40), (1, 300, 33), (1, 1100, 32), (1, 2000, 9)),
    "sixteen": ((2, 70, 40), (1, 300, 33), (1, 1100, 20)),
    "eight": ((2, 70, 40), (1, 300, 33)),
}
KINDS = (
    "nested", "normal", "quantised", "descending", "ascending", "some_nan", "constant", "zeros",
    "step", "few_groups", MIXTURE,
)  # fmt: skip
FAULTS: list[Fault] = [*find_barriers(), *MUTATIONS]
# Barriers that nothing misses, and why they may stand.
REDUNDANT: dict[str, str] = {}
# Where a fault of a file is looked for first, to save time; then everywhere.
NEAR = {
    "block_select.cuh": ("few", "some", "some_many"),
    "row_per_block.cuh": ("few", "few2", "few4"),
    "short_row.cuh": ("few", "some", "slices", "halves"),
    "row_per_warp.cuh": ("some", "some_many"),
    "rows_per_block.cuh": ("some", "some_many", "some4"),
    "group_leaders.cuh": ("some", "some_many", "halves"),
    "warp_narrow.cuh": ("some", "few", "halves"),
    "rows_by_halves.cuh": ("halves", "halves_many", "halves4"),
    "score_halves.cuh": ("halves", "halves_many"),
    "rows_in_slices.cuh": ("slices", "slices2"),
    "row_share.cuh": ("few2", "few4", "some4", "slices2", "halves4"),
    "warp_rank.cuh": ("some", "some_many", "few"),
    "sorting_network.cuh": ("quad", "many"),
    "score.cuh": ("halves4", "halves", "halves_many", "few"),
    **dict.fromkeys(("quad_list.cuh", "quad_sort.cuh", "row_per_quad.cuh"), ("quad",)),
    "quad_ring.cuh": ("slices",),
    "slice.cuh": ("many", "lean", "slices"),
    **dict.fromkeys(("lane_list.cuh", "lane_merge.cuh"), ("many", "lean", "wider", "eight")),
    **dict.fromkeys(
        ("row_per_lane.cuh", "tile_ring.cuh"), ("many", "lean", "wider", "sixteen", "eight")
    ),
    "score_pair.cuh": ("many", "lean"),
}
# Families of which wide selections lack some.
NARROW = ("quad", "many", "lean", "wider", "sixteen", "eight", "halves_many", "halves4")
Made = tuple[Call, torch.Tensor]  # with the right answer
FIRST_PART = 8  # calls; each part has twice as many as the one before


def step(shape, dtype: torch.dtype) -> torch.Tensor:
    """Return scores that rise once: ties come late in one warp's slice, or fill a whole chunk."""
    _, blocks, tokens = shape
    places = torch.tensor([8200 if blocks > 9000 else blocks // 5, blocks // 2, 40, 130])
    at = places.repeat(tokens)[:tokens]
    return (torch.arange(blocks).view(1, -1, 1) >= at).to(dtype).expand(shape).contiguous()


def make_calls(spec: TopKSelectSpec) -> Iterator[Call]:
    number = 0
    for family, shapes in SHAPES.items():
        if spec.topk > 32 and family in NARROW:
            continue
        for kind in KINDS:
            for shape in shapes:
                number += 1
                yield _make_call(spec, number, kind, shape, family)
    yield from (*_edges(spec), *_sliced(spec), *_halved(spec))
    if spec.topk <= 32:  # one block fewer than whole tiles, in aligned lines
        for layout in ("s_padded", "p_padded"):
            values = draw("normal", (1, 95, 33), DTYPES[spec.dtype])
            yield Call(values, spec.topk, torch.full((33,), 95).int(), layout=layout, family="many")
        # Lines that start anywhere in 16 bytes, and whose copies would leave the scores at an end.
        layouts = ("s_contiguous", "p_contiguous", "s_padded_heads")
        starts = itertools.product(((2, 64, 69), (2, 9, 33)), layouts, (0, 1, 3))
        for shape, layout, offset in starts:
            values = -draw("normal", shape, DTYPES[spec.dtype]).abs()  # what is not copied wins
            rows = torch.full(shape[2:], shape[1]).int()
            for family in ("many", "lean", "sixteen", "eight"):
                yield Call(values, spec.topk, rows, layout=layout, offset=offset, family=family)


def _edges(spec: TopKSelectSpec) -> Iterator[Call]:
    """Yield a row that ends with a chunk, and lists as long as fits or one longer."""
    dtype, forced = DTYPES[spec.dtype], {"topk": spec.topk, "begin": 1, "end": 2}
    extent = 2 * 8192 + 2
    for kind in ("normal", "ascending"):
        values = draw(kind, (1, extent, 1), dtype)
        rows = torch.tensor([extent]).int() if spec.extent == "token" else None
        for family in ("few", "few2"):  # of as many chunks for one thread block, a chunk for each
            yield Call(values, extent=rows, family=family, features=0, **forced)
    plateaus = torch.tensor([17, 30, 31, 32, 33, 65, 96, 97, 129, 256, 257, 320, 321])
    families = [("few", 500), ("few", 1000), ("some", 512), ("some", 700), ("halves", 4100)]
    families += [("some_many", 500), ("few2", 300), ("some4", 600)]
    families += [("many", 250), ("quad", 250), ("halves4", 500)] if spec.topk <= 32 else []
    for family, blocks in families:
        shape = (1, blocks, len(plateaus))
        order = draw("normal", shape, seed=blocks).argsort(1).argsort(1)
        rows = torch.full((len(plateaus),), blocks).int() if spec.extent == "token" else None
        for values in ((order < plateaus).to(dtype), (order < plateaus) * (order % 7 + 1.0)):
            yield Call(values.to(dtype), extent=rows, family=family, **forced)
    for blocks, last in itertools.product((600, 2100), (128, 129)):  # as short as one warp takes
        values = draw("ascending", (1, blocks, 11), dtype)
        if spec.extent == "token":
            rows = torch.full((11,), last + 2).int()
            narrow = ("halves4",) if spec.topk <= 32 else ()
            more = ("some", "few", "few2", "some4"), ("slices", "halves", "slices2", *narrow)
            for family in more[blocks > 600]:
                yield Call(values, extent=rows, family=family, **forced)
                with_nan = torch.where(values % 3 == 0, torch.nan, values)
                yield Call(with_nan, extent=rows, family=family, **forced)
    # All equal to the best there is, and few of them wanted; nothing but what is forced.
    values = torch.full((1, 70, 33), torch.inf, dtype=dtype)
    rows = torch.full((33,), 70).int() if spec.extent == "token" else None
    yield Call(values, spec.topk, rows, 6, 5, family="lean" if spec.topk <= 32 else "few")
    if spec.extent == "token":
        yield Call(-values[:, :, :9], spec.topk, torch.arange(9).int(), 3, 2, family="few")
    # One block fewer than whole tiles, of whole lines.
    values = draw("normal", (1, 2111, 8), dtype)
    rows = torch.full((8,), 2111).int() if spec.extent == "token" else None
    yield Call(values, extent=rows, layout="s_contiguous", family="slices", **forced)
    # Lists a little too long, of rows that no longer one joins.
    overfull = [
        ("halves", 4100, 260),
        ("halves4", 700, 260),
        ("some_many", 700, 260),
        ("some", 700, 324),
        ("quad", 250, 100),
    ]
    for family, blocks, size in overfull if spec.topk <= 32 else ():
        order = draw("normal", (1, blocks, 9), seed=blocks).argsort(1).argsort(1)
        values = (order < size) * 1.0
        if family == "quad":  # in its first chunk
            values[:, 128:] = -1.0
            values[:, :128] = (order[:, :128].argsort(1).argsort(1) < size) * 1.0
        rows = torch.full((9,), blocks).int() if spec.extent == "token" else None
        yield Call(values.to(dtype).contiguous(), extent=rows, family=family, **forced)
    # Of 33 that reach the bound (the first is forced), all but one in fewer groups than are wanted,
    # the last is the best.
    values = torch.full((1, 500, 1), -1.0)
    high = (torch.arange(500) % 32 < 12).nonzero().flatten()[:33]
    values[0, high, 0] = torch.arange(2.0, 35.0)
    values[0, 20, 0] = 1.0
    rows = torch.tensor([500]).int() if spec.extent == "token" else None
    yield Call(values.to(dtype), extent=rows, family="few", **forced)


def nested(shape, dtype: torch.dtype) -> torch.Tensor:
    """Return scores whose best lie in few groups, and among them the best in few groups again."""
    block = torch.arange(shape[1])
    score, lanes = torch.zeros(shape[1]), torch.ones(shape[1], dtype=torch.bool)
    place = block
    for _ in range(3):
        lanes = lanes & (place % 8 < 3)
        score += lanes
        place = lanes.cumsum(0) - 1
    score += draw("normal", (1, shape[1], 1)).flatten() / 32
    return score.to(dtype).view(1, -1, 1).expand(shape).contiguous()


def few_groups(shape, dtype: torch.dtype) -> torch.Tensor:
    """Return scores of which the best, more than a list holds, all differ and lie in few groups.

    Every other row has normal scores; of the rest an earlier one's are higher.
    """
    block, token = torch.arange(shape[1]).view(1, -1, 1), torch.arange(shape[2])
    high = (block % 4 == 0) * (4.0 + block % 97 / 32) * 2.0 ** (8 - token)
    return (high * (token % 2 == 0) + draw("normal", shape, seed=shape[1])).to(dtype)


def _sliced(spec: TopKSelectSpec) -> Iterator[Call]:
    """Yield rows that end before the slices do that were copied before their extents were known."""
    dtype = DTYPES[spec.dtype]
    shapes = [("slices", 2140, 8, 1000), *([("many", 200, 32, 100)] if spec.topk <= 32 else [])]
    for family, blocks, tokens, extent in shapes if spec.extent == "token" else ():
        values = draw("normal", (1, blocks, tokens), dtype)
        rows = torch.full((tokens,), extent).int()
        yield Call(values, spec.topk, rows, 0, 1, family=family)


def _halved(spec: TopKSelectSpec) -> Iterator[Call]:
    """Yield rows of few scores, zeros or NaN, and of best scores that just suffice."""
    if spec.extent != "token":
        return
    # Beside no longer ones, a row of 200 would be read in another way by `halves`.
    for family, blocks, few in (("halves", 4200, 4150), ("halves4", 900, 200)):
        shape = (1, blocks, 5)
        values = torch.full(shape, -torch.inf)
        values[:, 7:180:31] = 1.0
        zeros = torch.tensor([0.0, -0.0, -0.0]).repeat(blocks // 3).view(1, -1, 1).expand(shape)
        nan = draw("normal", shape)
        nan.view(torch.int32)[:, ::90] = -0x7FFFFF  # only the lowest bit tells it from -inf
        for some in (values, zeros.contiguous(), nan):
            rows = torch.full((5,), blocks if some is nan else few).int()
            yield Call(some, spec.topk, rows, 1, 2, family=family)
    blocks, shape = 4200, (1, 4200, 5)
    values = draw("normal", shape).clamp(max=2.0)
    places = [64 * member + item for item in (0, 1) for member in range(1, 8)][: spec.topk - 3]
    values[:, places] = torch.arange(50.0, 50.0 + len(places)).view(1, -1, 1)
    values[:, 0] = 100.0  # forced, in another group
    yield Call(values, spec.topk, torch.full((5,), blocks).int(), 1, 2, family="halves")
    for lengths in ([4200, 256, 257, 3000, 30], [4200, 258, 259, 128, 0]):  # short beside long
        for kind in ("normal", "some_nan"):
            rows = torch.tensor(lengths).int()
            yield Call(draw(kind, shape), spec.topk, rows, 1, 2, family="halves")


def _make_call(spec: TopKSelectSpec, number: int, kind: str, shape, family: str) -> Call:
    _, blocks, tokens = shape
    dtype = DTYPES[spec.dtype]
    begin, end = FORCED[number % len(FORCED)]
    extent = None
    if spec.extent == "token":
        form = ("random", "long", "wild", "near")[number % 4]
        if form == "near":  # just before, at and after the end of a batch of loads
            batches = max(1, blocks // 16 - 1)
            extent = torch.full((tokens,), 16 * batches + end - 1 + number // 4 % 3).int()
        else:
            extent = draw_extent(form, blocks, tokens, begin + end, seed=number)
            extent[0] = blocks
    together = family.startswith(("some", "slices", "halves", "quad"))  # tokens
    layouts = [name for name in LAYOUTS if name.startswith("s_") or not together]
    layout = layouts[number % len(layouts)]
    made = {"step": step, "nested": nested, "few_groups": few_groups}.get(kind)
    values = made(shape, dtype) if made else draw(kind, shape, dtype, seed=number)
    topk = spec.topk - 3 * (number % 4 == 3)  # the builds leave it to run time
    alone = family == "few" and blocks > 8192  # a thread block has the row to itself
    return Call(values, topk, extent, begin, end, layout=layout, family=family,
                features=0 if alone else ALL_FEATURES)  # fmt: skip


@cache
def calls(spec: TopKSelectSpec) -> list[Made]:
    return [
        (c, msa_topk_select_reference(c.scores, c.topk, c.extent, c.begin, c.end))
        for c in make_calls(spec)
    ]


@cache
def parts(spec: TopKSelectSpec, near: tuple[str, ...]) -> list[list[Made]]:
    """Return the calls in parts that grow: those of the families `near` first, then the smallest.

    Sizes are compared by their magnitude, so that a part is a mixture.
    """
    mixed = random.Random(0).sample(calls(spec), len(calls(spec)))
    mixed.sort(key=lambda made: (made[0].family not in near, made[0].values.numel().bit_length()))
    made, size = [], FIRST_PART
    while mixed:
        made.append(mixed[:size])
        mixed, size = mixed[size:], 2 * size
    return made


class Finders:
    """Calls that found faults, by file: what found one often finds the next one there."""

    MOST = 6  # of a spec's, for one file

    def __init__(self) -> None:
        self._lock = Lock()
        self._of: dict[tuple[str, TopKSelectSpec], list[Made]] = {}

    def of(self, file: str, spec: TopKSelectSpec) -> list[Made]:
        """Return the latest, the smallest first."""
        with self._lock:
            latest = self._of.get((file, spec), [])[: self.MOST]
        return sorted(latest, key=lambda made: made[0].values.numel())

    def add(self, file: str, spec: TopKSelectSpec, made: Made) -> None:
        with self._lock:
            known = self._of.setdefault((file, spec), [])
            known[:] = [made, *(other for other in known if other is not made)]


def find(include: Path, number: int, file: str, finders: Finders) -> str | None:
    """Return what is found with that fault, of that file, switched on; None if nothing is."""
    for spec, part in _in_order(file, finders):
        text, at = _find_in(Emulator(spec, "races", include), number, part)
        if text is not None:
            finders.add(file, spec, part[max(at, 0)])
            return text
    return None


def _in_order(file: str, finders: Finders) -> Iterator[tuple[TopKSelectSpec, list[Made]]]:
    """Yield the calls in parts: some near ones, what found other faults of the file, the rest."""
    near = NEAR.get(file, ())
    rounds = itertools.zip_longest(*(parts(spec, near) for spec in SPECS), fillvalue=[])
    first, *others = (turn for made in rounds for turn in zip(SPECS, made, strict=True))
    yield first
    for spec, part in itertools.chain(((spec, finders.of(file, spec)) for spec in SPECS), others):
        if part:
            yield spec, part


def _find_in(emulator: Emulator, number: int, part: list[Made]) -> tuple[str | None, int]:
    """Return what is found, and in which of the calls."""
    try:
        answers = emulator.run([c for c, _ in part], number)
    except FindingError as finding:
        return str(finding), finding.number
    for at, ((call, right), output) in enumerate(zip(part, answers.outputs, strict=True)):
        if not torch.equal(output, right):
            return f"wrong answer to {call}", at
    return None, -1


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> list[Path]:
    """Return the copy of the headers that holds each fault, all of them switched off."""
    return write_copies(tmp_path_factory.mktemp("mutants"), FAULTS)


@pytest.fixture(scope="module")
def findings(copies) -> dict[Fault | None, str | None]:
    """Return what is found with each fault, and with none."""
    first = [(spec, copies[0]) for spec in SPECS]
    for spec, copy in dict.fromkeys([*first, *((SPECS[0], copy) for copy in copies)]):
        Emulator(spec, "races", copy)  # compiles in the background; others where they are missed
    for spec in SPECS:
        calls(spec)  # before the threads would each do it
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        finders = Finders()
        without = pool.submit(find, copies[0], 0, "", finders)
        files = [fault.file for fault in FAULTS]
        numbers = range(1, len(FAULTS) + 1)
        found = pool.map(find, copies, numbers, files, itertools.repeat(finders))
        return {None: without.result(), **dict(zip(FAULTS, found, strict=True))}


@pytest.mark.parametrize("barrier", find_barriers(), ids=str)
def test_every_barrier_is_needed(findings, barrier):
    if str(barrier) in REDUNDANT:
        assert findings[barrier] is None, f"{barrier} is needed: take it off the list"
    else:
        assert findings[barrier] is not None, f"nothing misses {barrier}"


def test_the_list_of_redundant_barriers_is_up_to_date():
    assert {str(barrier) for barrier in find_barriers()} >= set(REDUNDANT)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_every_slip_is_found(findings, mutation):
    assert findings[mutation] is not None, f"nothing notices {mutation}"


def test_a_missing_barrier_is_a_race_in_any_order(findings):
    """Found by what the kernels promise to wait for, not by luck with a schedule."""
    told = {str(b): text for b, text in findings.items() if isinstance(b, Barrier) and text}
    by_luck = [barrier for barrier, text in told.items() if "wrong answer" in text]
    assert not by_luck


def test_without_a_fault_nothing_is_found(findings):
    assert findings[None] is None
