# SPDX-License-Identifier: Apache-2.0
"""The calls that a sanitizer watches, and a check that they reach every kernel.

Each call is made twice: with guard words round every tensor, and with tensors in memory of exactly
their size, so that a step outside is one into memory that is nobody's.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from guards import assert_exact, check
from scores import BF16, F16, F32, MIXTURE, Spec, draw, draw_extent

from flashinfer_msa.launch import load_library
from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.spec import TopKSelectSpec
from sanitize_lib.kernels import name_of_event, names_in_library

SPECS = (Spec(16, F32, 0, 1), Spec(16, BF16, 1, 2), Spec(32, F16, 1, 0), Spec(64, F32, 0, 2))
QUICK_SPECS = SPECS[:1]
# Rows (heads, tokens) on both sides of the limits that the dispatch may have, and blocks likewise.
ROWS = ((1, 1), (2, 40), (1, 2048), (3, 683), (16, 515), (64, 257), (512, 33))
FEW_BLOCKS = (1, 64, 127, 129, 257, 513, 1025, 2049, 4097, 8193, 17_000)
MANY_BLOCKS = (20, 40, 90, 128, 129, 300, 1100)  # the last for the fewest of the many rows
LAYOUTS = ("s_contiguous", "p_contiguous", "s_padded", "p_padded")
DTYPE_NAMES = {F32: "f32", F16: "f16", BF16: "bf16"}


class Call(NamedTuple):
    """One call of the op."""

    spec: Spec
    shape: tuple[int, int, int]
    layout: str
    extent: str
    seed: int


def calls(quick: bool) -> Iterator[Call]:
    """Yield the calls: every number of rows with few and with many blocks, in either order."""
    seeds = itertools.count(1)
    for spec in QUICK_SPECS if quick else SPECS:
        for heads, tokens in ROWS:
            few = heads * tokens < 2048
            for blocks in FEW_BLOCKS if few else MANY_BLOCKS:
                # What the oracle would need minutes for, and no kernel takes differently.
                if heads * tokens * blocks > 5_000_000 or (few and heads * blocks > 9000):
                    continue
                for layout in LAYOUTS[:2] if quick or blocks % 2 else LAYOUTS:
                    seed = next(seeds)
                    extent = ("random", "wild", "none")[seed % 3]
                    yield Call(spec, (heads, blocks, tokens), layout, extent, seed)


def arguments(call: Call) -> tuple[torch.Tensor, int, Any, int, int]:
    """Draw a call's scores and extents."""
    topk, dtype, begin, end = call.spec
    kind = MIXTURE if call.seed % 2 else "quantised"
    values = draw(kind, call.shape, dtype, seed=call.seed).cuda()
    extent = draw_extent(call.extent, *call.shape[1:], begin + end, seed=call.seed)
    return values, topk, extent.cuda() if extent is not None else None, begin, end


def run(call: Call) -> None:
    """Make the call both ways, and compare with the oracle."""
    values, topk, extent, begin, end = arguments(call)
    guarded = check(values, topk, extent, begin, end, layout=call.layout, offset=call.seed % 3)
    if call.layout.startswith("p"):
        values = values.transpose(1, 2).contiguous().transpose(1, 2)
    output = msa_topk_select(values, topk, extent, None, begin, end)
    assert_exact(output, guarded, values, extent)


def run_all(quick: bool) -> int:
    """Run every call; return how many there were."""
    chosen = list(calls(quick))
    for call in chosen:
        try:
            run(call)
        except AssertionError as error:
            raise AssertionError(f"{call}\n{error}") from None
    torch.cuda.synchronize()
    return len(chosen)


def coverage(quick: bool) -> tuple[set[str], set[str]]:
    """Return the kernels that the calls launched, and those that their libraries hold."""
    held = set()
    for spec, extent in {(c.spec, c.extent == "none") for c in calls(quick)}:
        form = "uniform" if extent else "token"
        build = TopKSelectSpec(spec.topk, DTYPE_NAMES[spec.dtype], spec.begin, spec.end, form)
        library = load_library(build, torch.cuda.get_device_capability())
        held |= {f"{build.name} {name}" for name in names_in_library(Path(library._name))}
    launched = set()
    for call in calls(quick):
        form = "uniform" if call.extent == "none" else "token"
        topk, dtype, begin, end = call.spec
        build = TopKSelectSpec(topk, DTYPE_NAMES[dtype], begin, end, form)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run(call)
            torch.cuda.synchronize()
        names = {name_of_event(event.name) for event in profile.events()} - {None}
        launched |= {f"{build.name} {name}" for name in names}
    return launched, held


def main() -> int:
    """Run the calls, or tell which kernels they miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one spec, fewer layouts")
    parser.add_argument("--coverage", action="store_true", help="check that no kernel is missed")
    options = parser.parse_args()
    if not options.coverage:
        print(f"{run_all(options.quick)} calls")
        return 0
    launched, held = coverage(options.quick)
    print(f"{len(launched & held)} of {len(held)} kernels reached")
    for name in sorted(held - launched):
        print(f"not reached: {name}")
    for name in sorted(launched - held):
        print(f"launched, but in no library: {name}")
    return 0 if held and launched == held else 1


if __name__ == "__main__":
    sys.exit(main())
