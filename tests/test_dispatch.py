# SPDX-License-Identifier: Apache-2.0
"""The tests know which kernel serves a call, and meet them all."""

import random
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import test_dependent_launch
import test_determinism
import test_streams_devices
from dispatch import (
    BLOCK_BOUNDS,
    CLUSTERS,
    FIRST_ROWS,
    NARROW,
    ROW_BOUNDS,
    SHARES,
    WIDEST_HALVES,
    WIDEST_MANY_ROWS,
    Shape,
    family_of,
    kernel_of,
    kernel_of_strides,
    kernels,
    shapes_round_bounds,
    shapes_round_few_tokens,
    shapes_round_many_warps,
)  # fmt: skip
from emulator import short_name
from emulator.build import HERE, folder
from guards import crowds
from layouts import LAYOUTS

from flashinfer_msa.env import include_dir
from flashinfer_msa.spec import TopKSelectSpec

Strides = tuple[int, int, int]
SPECS = (
    TopKSelectSpec(16, "f32", 0, 1, "token"),
    TopKSelectSpec(32, "bf16", None, None, "uniform"),
    TopKSelectSpec(64, "f32", 1, 2, "token"),
)
SPEC = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
BOTH_ORDERS = ("s_contiguous", "p_contiguous")
CHUNK = {"f32": 4, "bf16": 8}  # scores in 16 bytes


def strides(layout: str, shape: Shape, more: int) -> Strides:
    """Return strides of room for a shape; lines are aligned, or with one `more` are not."""
    heads, blocks, tokens = (16 * -(-size // 16) + more for size in shape)
    return LAYOUTS[layout](heads, blocks, tokens)


@cache
def probe(spec: TopKSelectSpec) -> Path:
    """Compile the dispatch of a spec for the CPU, without the kernels."""
    unit = folder() / f"dispatch-{spec.name}.cpp"
    unit.write_text("\n".join([*spec.sources().values(), '#include "dispatch_probe.cpp"\n']))
    command = ["g++", "-std=c++17", "-fno-pie", "-no-pie", "-Wl,--unresolved-symbols=ignore-all"]
    command += ['-DFLASHINFER_MSA_EMULATED_DEVICE="device.hpp"']
    command += [f"-I{path}" for path in (include_dir(), HERE, HERE.parent)]
    done = subprocess.run(
        [*command, unit, "-o", unit.with_suffix("")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    return unit.with_suffix("")


def launched(spec: TopKSelectSpec, calls: list[tuple[Shape, Strides]], features: int = CLUSTERS):
    """Return the kernel that the headers launch for each call, and all that they ready."""
    text = "\n".join(" ".join(map(str, (*shape, *strides, features))) for shape, strides in calls)
    done = subprocess.run([probe(spec)], input=text, capture_output=True, text=True, check=True)
    names: dict[str, list[str]] = {"launched": [], "prepared": []}
    for line in done.stdout.splitlines():
        kind, _, name = line.partition(" ")
        names[kind].append(short_name(name))
    assert len(names["launched"]) == len(calls)
    return names["launched"], set(names["prepared"])


def everywhere(topk: int) -> Iterable[tuple[Shape, Strides]]:
    """Yield calls round every bound and far from any, in every layout."""
    rng = random.Random(topk)
    shapes = [*shapes_round_few_tokens(topk), *shapes_round_many_warps()]
    for _ in range(2000):
        blocks, tokens = (1 + int(2 ** rng.uniform(0, most)) for most in (15, 14))
        shapes.append((rng.randint(1, 9), blocks, tokens))
    shapes += [(heads, blocks, 1) for heads in (1, 200, 5000) for blocks in range(1, 9000, 7)]
    for bound in BLOCK_BOUNDS:
        for layout in BOTH_ORDERS:
            shapes += shapes_round_bounds(topk, bound, layout)
    for layout in LAYOUTS.values():
        yield from ((shape, layout(*shape)) for shape in shapes)
    for stride in (2**31 - 1, 2**31, 2**40):
        for blocks in (100, 200, 300, 500, 600, 9000):
            for tokens in (1, 70, 200, 600, 800, 2500, 5000, 6000, 9000, 13_000, 23_000):
                yield (1, blocks, tokens), (1, stride, 1)


@cache
def launched_everywhere(spec: TopKSelectSpec):
    """Return those calls, the kernel that each launches, and all that the headers ready."""
    calls = [*everywhere(spec.topk)]
    return calls, *launched(spec, calls)


@SPEC
def test_the_headers_launch_what_the_tests_expect(spec):
    calls, real, prepared = launched_everywhere(spec)
    names: dict[str, str] = {}
    for call, name in zip(calls, real, strict=True):
        kernel = kernel_of_strides(spec.topk, *call, chunk=CHUNK[spec.dtype])
        assert names.setdefault(kernel, name) == name, call
        assert name.startswith(f"{family_of(kernel)}<"), call
    assert names.keys() == set(kernels(spec.topk))
    assert len(set(names.values())) == len(names), "two kernels, one name"
    assert set(names.values()) == prepared, "what is readied is what is launched"


@SPEC
def test_no_row_is_shared_where_the_gpu_has_no_clusters(spec):
    calls, with_names, _ = launched_everywhere(spec)
    names = {
        kernel_of_strides(spec.topk, *call, chunk=CHUNK[spec.dtype]): name
        for call, name in zip(calls, with_names, strict=True)
    }
    real, _ = launched(spec, calls, features=0)
    for call, name in zip(calls, real, strict=True):
        kernel = kernel_of_strides(spec.topk, *call, False, CHUNK[spec.dtype])
        assert not kernel.endswith(SHARES)
        assert name == names[kernel], call


@SPEC
@pytest.mark.parametrize("layout", BOTH_ORDERS)
def test_no_bound_is_missing_from_the_list(spec, layout):
    """Both scans ask the headers themselves, of lines that are aligned or, the second, are not."""

    def bounds(shapes: list[Shape], more: int = 0) -> set[Shape]:
        names, _ = launched(spec, [(shape, strides(layout, shape, more)) for shape in shapes])
        pairs = zip(shapes, names, names[1:], strict=False)
        return {shape for shape, before, after in pairs if before != after}

    for tokens in (1, 4, 20, 40, 100, 128, 600, 800, 2500, 3500, 5000, 6000, 9000, 13_000, 25_600):
        most = 9000 if tokens > 100 else 40_000
        found = bounds([(1, blocks, tokens) for blocks in range(2, most)])
        assert {blocks + 1 for _, blocks, _ in found} <= set(BLOCK_BOUNDS)
    for blocks in (2, *BLOCK_BOUNDS):
        shapes = [(1, blocks, tokens) for tokens in range(4, 26_000)]
        found = bounds(shapes) | bounds(shapes, more=1)
        assert {tokens + 1 for _, _, tokens in found} <= {*ROW_BOUNDS, *FIRST_ROWS}


@pytest.mark.parametrize("topk", [16, 32, 33, 64])
def test_the_sweep_meets_every_kernel_and_both_sides_of_every_bound(topk):
    met, crossed = set(), set()
    for layout in BOTH_ORDERS:
        for shapes in (
            *([*shapes_round_bounds(topk, bound, layout)] for bound in BLOCK_BOUNDS),
            [*shapes_round_few_tokens(topk)],
            [*shapes_round_many_warps()],
        ):
            met |= {kernel_of(topk, shape, layout) for shape in shapes}
            for more in (0, 1):
                here = {s: kernel_of_strides(topk, s, strides(layout, s, more)) for s in shapes}
                for (heads, blocks, tokens), kernel in here.items():
                    if here.get((heads, blocks - 1, tokens), kernel) != kernel:
                        crossed.add(blocks)
                    if heads == 1 and here.get((1, blocks, tokens - 1), kernel) != kernel:
                        crossed.add(f"{tokens} rows")
    every = {*BLOCK_BOUNDS, *(f"{rows} rows" for rows in (*ROW_BOUNDS, *FIRST_ROWS))}
    if topk > NARROW:
        every -= {f"{FIRST_ROWS[0]} rows", f"{FIRST_ROWS[2]} rows", "384 rows"}
    every.remove("193 rows" if topk > WIDEST_HALVES else "129 rows")
    if topk > WIDEST_MANY_ROWS:
        many = [rows for rows in (*ROW_BOUNDS, *FIRST_ROWS) if rows > 768]
        every -= {f"{rows} rows" for rows in many}
    assert crossed == every
    assert met == set(kernels(topk))


@pytest.mark.parametrize(
    "module", [test_dependent_launch, test_determinism, test_streams_devices],
    ids=lambda module: module.__name__,
)  # fmt: skip
def test_shapes_of_streams_and_repeats_meet_every_family(module):
    """Scores there have their tokens together."""
    met = {kernel_of(16, shape) for shape in module.SHAPES}
    assert {family_of(kernel) for kernel in met} == {family_of(kernel) for kernel in kernels(16)}
    shared = {family_of(kernel) for kernel in kernels(16) if kernel.endswith(SHARES)}
    assert {family_of(kernel) for kernel in met if kernel.endswith(SHARES)} == shared
    assert shared <= {family_of(kernel) for kernel in met if not kernel.endswith(SHARES)}


@pytest.mark.parametrize("layout", BOTH_ORDERS)
def test_a_checked_call_meets_every_family_that_may_serve_it(layout):
    for blocks in (100, 200, 400, 700, 1500, 3000):
        for heads, tokens in ((1, 1), (2, 19), (5, 3)):
            times = [1, *crowds(16, (heads, blocks, tokens), layout)]
            met = {kernel_of(16, (heads, blocks, tokens * n), layout) for n in times}
            rows = range(1, 13_000)
            most = {kernel_of(16, (1, blocks, n), layout) for n in rows}
            assert {family_of(kernel) for kernel in met} == {family_of(kernel) for kernel in most}
    some_rows = [13, 154] if layout == "s_contiguous" else []
    assert [*crowds(64, (1, 100, 5), layout)] == some_rows
    assert [*crowds(16, (0, 100, 5), layout)] == []


def test_the_bench_times_both_sides_of_every_bound(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "scripts")
    from bench_lib.cases import bounds, neighbours, recorded

    full = {*recorded(), *neighbours()}
    assert len(full) < 275
    timed: dict[tuple[str, Shape], str] = {}
    for case in bounds():
        shape = (case.heads, case.blocks, case.tokens)
        timed[case.order, shape] = kernel_of(16, shape, f"{case.order.lower()}_contiguous")
    sides = set()
    for (order, (heads, blocks, tokens)), kernel in timed.items():
        for before in ((heads, blocks - 1, tokens), (heads, blocks, tokens - 1)):
            if (order, before) in timed:
                assert timed[order, before] != kernel, (order, before)
                sides.add((timed[order, before], kernel))
    met = {kernel for pair in sides for kernel in pair}
    assert met == set(kernels(16))
    assert {blocks for _, (_, blocks, _) in timed} >= set(BLOCK_BOUNDS)
    starts = {row for _, (heads, _, tokens) in timed for row in ROW_BOUNDS if heads * tokens == row}
    assert starts == {*ROW_BOUNDS} - {129}  # one of wider selections
