# SPDX-License-Identifier: Apache-2.0
"""Both sides of every bound at which another kernel takes over (dispatch.py), bit for bit."""

import itertools

import pytest
import torch
from dispatch import (
    BLOCK_BOUNDS,
    kernel_of,
    shapes_round_bounds,
    shapes_round_few_tokens,
    shapes_round_many_warps,
)  # fmt: skip
from guards import assert_exact, run_guarded
from scores import HALF, KINDS, LOCAL, WIDE, WIDEST, draw, draw_extent

from flashinfer_msa.reference import msa_topk_select_reference as reference

pytestmark = pytest.mark.gpu
LAYOUT = pytest.mark.parametrize("layout", ["s_contiguous", "p_contiguous"])
NAMES = list(KINDS)
PERIOD = 257  # tokens; prime to whatever a kernel takes together
# Forms of the extent, and of how many shapes one is taken.
SPECS = [
    pytest.param(LOCAL, ("none", "token"), 1, id="local"),
    pytest.param(WIDEST, ("token",), 1, id="widest"),
    pytest.param(WIDE, ("token",), 3, id="wide"),
    pytest.param(HALF, ("token",), 3, id="half"),
]


def check_round_a_bound(shape, spec, form, layout, seed):
    """Compare one call with the reference, which answers for no more tokens than `PERIOD`."""
    heads, blocks, count = shape
    topk, dtype, begin, end = spec
    base = min(count, PERIOD)
    kinds = "+".join(NAMES[(seed + i) % len(NAMES)] for i in range(3))
    values = draw(kinds, (heads, blocks, base), dtype, seed=seed, device="cuda")
    extent = None
    if form == "token":
        extent = draw_extent("random", blocks, base, 0, seed=seed, device="cuda")
        extent[3::7], extent[5::7] = 0, blocks + 9
        # In stretches, because tokens that share a thread block are short or not together.
        narrow = torch.arange(base, device="cuda") // 16 % 2 == seed // 2 % 2
        edge = draw_extent("narrow", blocks, base, 0, seed=seed, device="cuda")
        extent = torch.where(narrow, edge, extent)
    expected = reference(values, topk, extent, begin, end)
    again = torch.arange(count, device="cuda") % base
    values, extent = values[..., again], extent if extent is None else extent[again]
    output = run_guarded(values, topk, extent, begin, end, layout=layout)
    try:
        assert_exact(output, expected[again], values, extent)
    except AssertionError as error:
        kernel = kernel_of(topk, shape, layout)
        raise AssertionError(f"{shape} {layout} {spec} {form}: {kernel}\n{error}") from None


@LAYOUT
@pytest.mark.parametrize("bound", BLOCK_BOUNDS)
@pytest.mark.parametrize(("spec", "forms", "every"), SPECS)
def test_both_sides_of_every_bound(spec, forms, every, bound, layout):
    """Blocks and rows round every number at which another kernel takes over."""
    shapes = [*shapes_round_bounds(spec.topk, bound, layout)][bound % every :: every]
    for seed, (shape, form) in enumerate(itertools.product(shapes, forms)):
        check_round_a_bound(shape, spec, form, layout, seed)


@LAYOUT
@pytest.mark.parametrize("spec", [LOCAL, WIDEST], ids=str)
def test_both_sides_of_the_bound_of_tokens_that_share_a_thread_block(spec, layout):
    for seed, shape in enumerate(shapes_round_few_tokens(spec.topk)):
        check_round_a_bound(shape, spec, "token", layout, seed)


@LAYOUT
@pytest.mark.parametrize("spec", [LOCAL, WIDE], ids=str)
def test_both_sides_of_the_bound_of_warps_that_keep_the_gpu_busy(spec, layout):
    for seed, shape in enumerate(shapes_round_many_warps()):
        check_round_a_bound(shape, spec, "token", layout, seed)
