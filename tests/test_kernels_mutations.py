# SPDX-License-Identifier: Apache-2.0
"""The emulated tests can fail: each fault put into the kernels is found.

Every barrier of the headers is left out in turn; it must be missed as a race or a wrong answer,
whatever the schedule. The other faults are the usual slips: an index off by one, a strict
comparison for a weak one, a rule of the contract forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import torch
from emulator import Call, Emulator, FindingError
from emulator.mutate import Barrier, Fault, Mutation, find_barriers, write_copies
from guards import LAYOUTS
from scores import MIXTURE, draw, draw_extent

from flashinfer_msa.reference import msa_topk_select_reference
from flashinfer_msa.spec import TopKSelectSpec

MUTATIONS = (
    # the extent, the forced blocks, the middle, the strides
    Mutation("row.cuh", "limit < 0", "limit < -5"),
    Mutation("row.cuh", "limit < p.blocks ? limit : p.blocks", "limit"),
    Mutation("row.cuh", "end = extent - forced_end;", "end = extent - Policy::force_end(p);"),
    Mutation("row.cuh", "end = extent - forced_end;", "end = extent;"),
    Mutation("row.cuh", "head * p.head_stride", "head * p.tokens"),
    Mutation("row.cuh", "token * p.token_stride", "token"),
    Mutation("row.cuh", "block * block_stride", "block"),
    Mutation("row.cuh", "topk(p) - force_begin(p) - force_end(p)", "topk(p) - force_begin(p)"),
    # the order of scores
    Mutation("score.cuh", "smaller(x, infinity())", "x"),
    Mutation("score.cuh", "smaller(x, infinity())", "larger(x, no_score())"),
    Mutation("score.cuh", "bits ^ ((bits >> 31) & 0x7fffffff)", "bits"),
    Mutation("score.cuh", "x == no_score()", "false"),
    Mutation("score.cuh", "bits_float(0x80000001u)", "bits_float(0x80000000u)"),
    Mutation("score.cuh", "ordered_bits(x) - 1", "ordered_bits(x)"),
    # sorting
    Mutation("sorting_network.cuh", "kSize - 1 - i", "i"),
    Mutation("sorting_network.cuh", "i == index", "i == index + 1"),
    Mutation(
        "sorting_network.cuh",
        "gap >= 1",
        "gap > 1",
        fixed=True,
        within="for (int gap = size / 2; gap >= 1",
    ),
    Mutation("sorting_network.cuh", "run < size", "2 * run < size", fixed=True),
    # one lane a row
    Mutation("lane_list.cuh", "ties > 0", "true"),
    Mutation("lane_list.cuh", "s > threshold", "s >= threshold", within="(s > threshold || tie)"),
    Mutation("lane_list.cuh", "end = kept;", ""),
    Mutation("lane_list.cuh", "warp_any(base < count())", "false"),
    Mutation("tile_ring.cuh", "blocks_ >= kTileBlocks", "blocks_ >= kTileBlocks - 1"),
    Mutation("tile_ring.cuh", "rows_ >= kWarpSize", "true"),
    Mutation("tile_ring.cuh", "line < lines", "line <= lines"),
    Mutation("tile_ring.cuh", "blocks_ -= kTileBlocks;", ""),
    Mutation("tile_ring.cuh", "next_ += tile_stride_;", "next_ += 32;"),
    Mutation("row_per_lane.cuh", "!(s <= list.passing)", "s > list.passing"),
    Mutation("row_per_lane.cuh", "!(s <= list.passing)", "!(s < list.passing)"),
    Mutation("row_per_lane.cuh", "passes &= inside;", ""),
    Mutation(
        "row_per_lane.cuh",
        "list.count() + count_bits(passes) > List::kCapacity",
        "list.count() > List::kCapacity",
    ),
    Mutation("row_per_lane.cuh", "first + block", "first + block + 1"),
    Mutation(
        "row_per_lane.cuh",
        "next_below(first_threshold(ring, slice, wanted))",
        "first_threshold(ring, slice, wanted)",
    ),
    Mutation("row_per_lane.cuh", "next_below(threshold)", "threshold"),
    Mutation("slice.cuh", "(1u << n) - 1u", "(2u << n) - 1u"),
    Mutation("row_per_lane.cuh", "place + 1 == kTiles ? 0 : place + 1", "0"),
    Mutation(
        "row_per_lane.cuh",
        "wanted - 1",
        "wanted",
        within="smem.threshold[l] = pick(top, wanted - 1",
    ),
    Mutation("row_per_lane.cuh", "all_ties - equal_before", "all_ties"),
    Mutation(
        "row_per_lane.cuh", "equal_before < all_ties ? equal_before : all_ties", "equal_before"
    ),
    Mutation("row_per_lane.cuh", "ties > 0", "ties >= 0"),
    Mutation("row_per_lane.cuh", "block < row.extent", "block <= row.extent"),
    Mutation("row_per_lane.cuh", "token < params.tokens ? token : params.tokens - 1", "token"),
    Mutation("row_per_lane.cuh", "left < kWarpSize ? left : kWarpSize", "kWarpSize"),
    # a thread block for one row or a few
    Mutation("rows_per_block.cuh", "block < row.end", "block <= row.end"),
    Mutation("rows_per_block.cuh", "block >= row.begin", "true"),
    Mutation("rows_per_block.cuh", "score[i] >= threshold", "score[i] > threshold"),
    Mutation(
        "rows_per_block.cuh",
        "score[i] > passed",
        "true",
        within="score[i] > passed && score[i] >= threshold",
    ),
    Mutation("rows_per_block.cuh", "w < warp_index()", "w <= warp_index()"),
    Mutation("rows_per_block.cuh", "before & 0xffff", "before"),
    Mutation("rows_per_block.cuh", "slot < begin", "slot <= begin"),
    Mutation("rows_per_block.cuh", "block < extent", "block <= extent"),
    Mutation("rows_per_block.cuh", "lane_index() / kRows", "lane_index() % kLanes"),
    Mutation("rows_per_block.cuh", "warp_ballot(stays) & lanes_of_row()", "warp_ballot(stays)"),
    Mutation("rows_per_block.cuh", "token < params.tokens ? token : params.tokens - 1", "token"),
    Mutation("rows_per_block.cuh", "token >= params.tokens", "false"),
    Mutation("rows_per_block.cuh", "lane_index() ^ i", "lane_index() ^ 1"),
    Mutation("rows_per_block.cuh", "Policy::kTopK + kChunk>", "kChunk>", fixed=True),
    Mutation(
        "warp_narrow.cuh",
        "wanted - above",
        "wanted",
        within="keep(count, threshold, wanted - above)",
    ),
    Mutation("warp_narrow.cuh", "ties_before < ties", "ties_before <= ties"),
    Mutation("warp_narrow.cuh", "(1u << lane_index()) - 1u", "(2u << lane_index()) - 1u"),
    Mutation("warp_narrow.cuh", "count > wanted", "count > wanted + 1"),
    Mutation("warp_narrow.cuh", "kept += count_bits(staying);", "kept += kWarpSize;"),
    Mutation("warp_narrow.cuh", "score[lane] = no_score();", "score[lane] = infinity();"),
    Mutation("warp_narrow.cuh", "worst + count_bits(tied & lower_lanes()) < wanted", "true"),
)
SPECS = (
    TopKSelectSpec(16, "f32", None, None, "token"),
    TopKSelectSpec(64, "f16", None, None, "uniform"),
)
DTYPES = {"f32": torch.float32, "f16": torch.float16}
FORCED = ((1, 2), (0, 0), (0, 1), (3, 2))
FEW = ((2, 9, 3), (1, 70, 11), (2, 300, 3), (1, 1030, 2), (1, 20_000, 1))
FEW_LARGE = ((16, 300, 9), (16, 2100, 8))  # of a few kinds, for they take long
MANY = ((2, 9, 33), (2, 70, 40), (1, 300, 33), (1, 1100, 32))
KINDS = (
    "normal", "quantised", "descending", "ascending", "some_nan", "constant", "zeros", "step",
    MIXTURE,
)  # fmt: skip
# Barriers that nothing misses, and why they may stand.
REDUNDANT = {
    "warp_narrow.cuh:129: sync_warp()": "a round ends synchronised, but only as its callers are "
    "now; it costs one instruction, for long lists alone",
}
PARTS = 10  # a fault is looked for in one after the other


def step(shape, dtype: torch.dtype) -> torch.Tensor:
    """Return scores that rise once: ties come late in one warp's slice, or fill a whole chunk."""
    _, blocks, tokens = shape
    places = torch.tensor([8200 if blocks > 9000 else blocks // 5, blocks // 2, 40, 130])
    at = places.repeat(tokens)[:tokens]
    return (torch.arange(blocks).view(1, -1, 1) >= at).to(dtype).expand(shape).contiguous()


def make_calls(spec: TopKSelectSpec) -> Iterator[Call]:
    families = [("few", FEW)] + ([("many", MANY)] if spec.topk <= 32 else [])
    number = 0
    for family, shapes in families:
        for kind in KINDS:
            large = FEW_LARGE if family == "few" and kind in ("normal", "step") else ()
            for shape in (*shapes, *large):
                number += 1
                yield _make_call(spec, number, kind, shape, family)
    if spec.topk <= 32:  # one block fewer than whole tiles, in aligned lines
        for layout in ("s_padded", "p_padded"):
            values = draw("normal", (1, 95, 33), DTYPES[spec.dtype])
            yield Call(values, spec.topk, torch.full((33,), 95).int(), layout=layout, family="many")


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
    layout = tuple(LAYOUTS)[number % len(LAYOUTS)]
    values = step(shape, dtype) if kind == "step" else draw(kind, shape, dtype, seed=number)
    return Call(values, spec.topk, extent, begin, end, layout=layout, family=family)


@cache
def calls(spec: TopKSelectSpec) -> list[tuple[Call, torch.Tensor]]:
    return [
        (c, msa_topk_select_reference(c.scores, c.topk, c.extent, c.begin, c.end))
        for c in make_calls(spec)
    ]


def find(include: Path, number: int) -> str | None:
    """Return what is found with that fault switched on, None if nothing is."""
    for part in range(PARTS):
        for spec in SPECS:
            made = calls(spec)[part::PARTS]
            try:
                emulator = Emulator(spec, "races", include)
                outputs = emulator.run([call for call, _ in made], mutant=number).outputs
            except FindingError as finding:
                return str(finding)
            for (call, right), output in zip(made, outputs, strict=True):
                if not torch.equal(output, right):
                    return f"wrong answer to {call}"
    return None


@pytest.fixture(scope="module")
def findings(tmp_path_factory) -> dict[Fault, str | None]:
    faults = [*find_barriers(), *MUTATIONS]
    copies = write_copies(tmp_path_factory.mktemp("mutants"), faults)
    for copy in dict.fromkeys(copies):
        for spec in SPECS:
            Emulator(spec, "races", copy)  # compiles in the background
    for spec in SPECS:
        calls(spec)  # before the threads would each do it
    with ThreadPoolExecutor() as pool:
        found = pool.map(find, copies, range(1, len(faults) + 1))
        return dict(zip(faults, found, strict=True))


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


def test_without_a_fault_nothing_is_found(findings, tmp_path):
    (copy,) = set(write_copies(tmp_path, [find_barriers()[0]]))
    assert find(copy, 0) is None
