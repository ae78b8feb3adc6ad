# SPDX-License-Identifier: Apache-2.0
"""Make the calls that a sanitizer watches, or check that they reach every kernel.

Each call is made with tensors in memory of exactly their size, so that a step outside is one into
memory that is nobody's; and before that, but for ``--races``, with guard words round every tensor.
No other kernel runs in a ``--races`` run: torch's own would be watched too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from guards import assert_exact, bits, run_guarded
from layouts import LAYOUTS
from scores import DTYPE_NAMES, INF, draw, draw_extent

from flashinfer_msa.launch import load_library
from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference
from flashinfer_msa.spec import TopKSelectSpec
from sanitize_lib.kernels import name_of_event, names_in_library
from sanitize_lib.selection import MOSTLY_EMPTY, Call, all_calls, race_calls

STOPPED = 3  # exit code of a run that its limit ended; __main__.py knows it too


def make_values(call: Call) -> torch.Tensor:
    """Draw a call's scores on the CPU; heads that share memory have one head's."""
    heads = 1 if "expanded" in call.layout else call.shape[0]
    return draw(call.kinds, (heads, *call.shape[1:]), call.spec.dtype, seed=call.seed)


def make_extent(call: Call) -> torch.Tensor | int | None:
    """Draw a call's extents on the CPU."""
    _, blocks, tokens = call.shape
    if call.extent != MOSTLY_EMPTY:
        forced = call.spec.begin + call.spec.end
        return draw_extent(call.extent, blocks, tokens, forced, seed=call.seed)
    extent = draw_extent("random", blocks, tokens, 0, seed=call.seed)
    extent[40:-5] = 0
    extent[16:24].clamp_(max=128)  # one warp answers those, whole thread blocks of them
    extent[:3] = extent[-3:] = blocks
    if tokens < 8:
        extent[1::2] = min(blocks, 100)
    return extent


def place(values: torch.Tensor, call: Call) -> torch.Tensor:
    """Return the scores on the GPU, in memory that ends where they do; copies are all it takes."""
    strides = LAYOUTS[call.layout](*call.shape)
    span = 1 + sum((n - 1) * stride for n, stride in zip(call.shape, strides, strict=True))
    memory = torch.full((call.offset + span,), INF, dtype=values.dtype)
    view = memory.as_strided(values.shape, strides, call.offset)
    bits(view).copy_(bits(values))
    return memory.cuda().as_strided(call.shape, strides, call.offset)


def run(call: Call, guarded: bool) -> None:
    """Make the call and compare with the reference."""
    topk, _, begin, end = call.spec
    values, extent = make_values(call), make_extent(call)
    expected = reference(values, topk, extent, begin, end)
    expected = expected.expand(call.shape[2], call.shape[0], topk)
    on_gpu: Any = extent.cuda() if isinstance(extent, torch.Tensor) else extent
    if guarded:
        whole = values.cuda().expand(call.shape)
        output = run_guarded(
            whole, topk, on_gpu, begin, end, layout=call.layout, offset=call.offset
        )
        assert_exact(output, expected)
    assert_exact(msa_topk_select(place(values, call), topk, on_gpu, None, begin, end), expected)


def run_all(calls: list[Call], guarded: bool, limit: float) -> int:
    """Run the calls until the limit, telling each; return the exit code."""
    start, reached, stopped = time.perf_counter(), set(), False
    for number, call in enumerate(calls, 1):
        if stopped := time.perf_counter() - start > limit:
            print(f"stopped after {limit:.0f} s: {number - 1} of {len(calls)} calls")
            break
        try:
            run(call, guarded)
        except AssertionError as error:
            raise AssertionError(f"{call}\n{error}") from None
        reached.add((call.spec, call.kernel))
        print(f"{number}/{len(calls)} {time.perf_counter() - start:.1f} s {call}", flush=True)
    torch.cuda.synchronize()
    wanted = list(dict.fromkeys((call.spec, call.kernel) for call in calls))
    print(f"{len(reached)} of {len(wanted)} kernels called")
    for spec, kernel in wanted:
        if (spec, kernel) not in reached:
            print(f"not called: {spec} {kernel}")
    return STOPPED if stopped or len(reached) < len(wanted) else 0


def build_of(call: Call) -> TopKSelectSpec:
    """Return the build that serves a call."""
    topk, dtype, begin, end = call.spec
    return TopKSelectSpec(topk, DTYPE_NAMES[dtype], begin, end, call.form)


def coverage(choose: Callable[[bool], Iterator[Call]], quick: bool) -> tuple[set[str], set[str]]:
    """Return the kernels that the calls launched, and those that their libraries hold."""
    calls = defaultdict(list)
    for call in choose(quick):
        calls[build_of(call)].append(call)
    held, launched = set(), set()
    for build, those in calls.items():
        library = load_library(build, torch.cuda.get_device_capability())
        held |= {f"{build.name} {name}" for name in names_in_library(Path(library._name))}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for call in those:
                run(call, guarded=False)
            torch.cuda.synchronize()
        names = {name_of_event(event.name) for event in profile.events()} - {None}
        launched |= {f"{build.name} {name}" for name in names}
    return launched, held


def check_coverage(quick: bool) -> int:
    """Print which kernels the selections miss; return the exit code."""
    code = 0
    for what, choose in (("races: ", race_calls), ("", all_calls)):
        launched, held = coverage(choose, quick)
        print(f"{what}{len(launched & held)} of {len(held)} kernels reached")
        for name in sorted(held - launched):
            print(f"not reached: {name}")
        for name in sorted(launched - held):
            print(f"launched, but in no library: {name}")
        code |= not held or launched != held
    return code


def main() -> int:
    """Run the calls, or tell which kernels they miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one spec")
    parser.add_argument("--races", action="store_true", help="few calls, and no others' kernels")
    parser.add_argument("--coverage", action="store_true", help="check that no kernel is missed")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, then stop")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="the I-th of N parts of them")
    options = parser.parse_args()
    if options.coverage:
        return check_coverage(options.quick)
    choose = race_calls if options.races else all_calls
    part, parts = map(int, options.part.split("/"))
    calls = [*choose(options.quick)][part::parts]
    return run_all(calls, not options.races, options.limit)


if __name__ == "__main__":
    sys.exit(main())
