# SPDX-License-Identifier: Apache-2.0
"""Each row looks at its own extent, clamped to 0..P, and at nothing past it."""

import pytest
import torch
from guards import assert_exact, check, run_guarded
from scores import (
    HALF,
    INF,
    LOCAL,
    MIXTURE,
    NAN,
    PLAIN,
    SHARED_SPECS,
    SINK_LOCAL,
    TOKEN_EXTENTS,
    WIDE,
    draw,
    draw_extent,
    generator,
    tokens,
)  # fmt: skip

from flashinfer_msa.msa_ops import msa_topk_select

OUT_OF_RANGE = [-1, -5, -(2**31), -(2**31) + 1, 0]
HUGE = [1, 2, 1000, 2**30, 2**31 - 1]  # past P by this much, as far as an int32 goes


@pytest.mark.parametrize("spec", SHARED_SPECS, ids=str)
@pytest.mark.parametrize("kind", TOKEN_EXTENTS)
def test_each_token_has_its_own_extent(device, kind, spec):
    topk, dtype, begin, end = spec
    gen = generator(4, device)
    for blocks, count in [(1, 5), (24, 38), (160, 19), (2500, 19)]:
        values = draw(MIXTURE, (2, blocks, count), dtype, gen)
        check(values, topk, draw_extent(kind, blocks, count, 0, gen), begin, end)


@pytest.mark.parametrize("blocks", [1, 24, 160, 3000])
def test_extents_out_of_range_are_clamped(device, blocks):
    wild = [*OUT_OF_RANGE, *(min(blocks + n, 2**31 - 1) for n in HUGE)]
    values = draw("normal", (2, blocks, len(wild)), seed=blocks, device=device)
    topk, _, begin, end = SINK_LOCAL
    output = check(values, topk, tokens(wild, device), begin, end)
    assert output[: len(OUT_OF_RANGE)].eq(-1).all()
    whole = check(values, topk, None, begin, end)
    assert torch.equal(output[len(OUT_OF_RANGE) :], whole[len(OUT_OF_RANGE) :])


@pytest.mark.parametrize("spec", [PLAIN, LOCAL, SINK_LOCAL], ids=str)
def test_token_extents_equal_one_int_call_each(device, spec):
    topk, dtype, begin, end = spec
    for blocks in (24, 160, 2100):
        values = draw(MIXTURE, (2, blocks, 18), dtype, seed=blocks, device=device)
        extents = torch.linspace(max(1, begin + end), blocks, 18).int()
        together = check(values, topk, extents.to(device), begin, end)
        for s, n in enumerate(extents.tolist()):
            alone = check(values[..., s : s + 1].contiguous(), topk, n, begin, end)
            assert_exact(together[s : s + 1], alone.cpu())


@pytest.mark.parametrize("spec", [PLAIN, LOCAL, SINK_LOCAL], ids=str)
def test_uniform_forms_of_the_same_extent_agree(device, spec):
    topk, dtype, begin, end = spec
    values = draw(MIXTURE, (3, 90, 19), dtype, seed=6, device=device)
    as_none = check(values, topk, None, begin, end)
    as_int = check(values, topk, 90, begin, end)
    as_tensor = check(values, topk, tokens([90] * 19, device), begin, end)
    assert torch.equal(as_none, as_int)
    assert torch.equal(as_none, as_tensor)


@pytest.mark.parametrize("blocks", [1, 2, 16, 17, 100, 1000])
def test_int_extents_below_the_number_of_blocks(device, blocks):
    values = draw(MIXTURE, (2, blocks, 17), seed=blocks, device=device)
    for n in sorted({1, 2, blocks // 2, blocks - 1, blocks} & {*range(1, blocks + 1)}):
        assert check(values, 16, n).lt(n).all()


@pytest.mark.parametrize("junk", [NAN, -NAN, INF, 1e30], ids=str)
@pytest.mark.parametrize("spec", [PLAIN, SINK_LOCAL], ids=str)
def test_junk_past_the_extent_has_no_effect(device, spec, junk):
    topk, _, begin, end = spec
    for blocks in (40, 300, 5000):
        clean = draw("normal", (2, blocks, 9), seed=8, device=device)
        extents = torch.linspace(-1, blocks, 9).int().to(device)
        past = torch.arange(blocks, device=device).view(1, -1, 1) >= extents
        dirty = torch.where(past, junk, clean)
        expected = run_guarded(clean, topk, extents, begin, end)
        assert torch.equal(check(dirty, topk, extents, begin, end), expected)


@pytest.mark.parametrize("layout", ["s_contiguous", "p_contiguous"])
def test_random_bits_past_an_int_extent_have_no_effect(device, layout):
    clean = draw("normal", (2, 200, 9), seed=8, device=device)
    dirty = clean.clone()
    dirty[:, 120:] = draw("any_bits", (2, 80, 9), seed=9, device=device)
    expected = run_guarded(clean[:, :120].contiguous(), 16)
    assert torch.equal(check(dirty, 16, 120, layout=layout), expected)


def test_one_long_row_among_short_ones(device):
    """The longest row decides how much work there is, not what the others choose."""
    values = draw("normal", (2, 9000, 40), seed=1, device=device)
    extents = tokens([3] * 39 + [9000], device)
    output = check(values, 16, extents, 0, 1)
    assert output[:39].tolist() == [[[0, 1, 2] + [-1] * 13] * 2] * 39
    extents = tokens([9000] + [0] * 39, device)
    assert check(values, 16, extents, 0, 1)[1:].eq(-1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [PLAIN, LOCAL, SINK_LOCAL, HALF, WIDE], ids=str)
@pytest.mark.parametrize("blocks", [3000, 5000, 8192, 9001])
def test_rows_of_very_different_lengths_side_by_side(blocks, spec):
    """Threads share rows: how a short one is read depends on those beside it."""
    device = torch.device("cuda")
    topk, dtype, begin, end = spec
    gen = generator(blocks, device)
    for heads, count in [(1, 40), (1, 130), (3, 70), (2, 261)]:
        values = draw(MIXTURE, (heads, blocks, count), dtype, gen)
        check(values, topk, draw_extent("apart", blocks, count, 0, gen), begin, end)


def test_every_extent_from_none_to_all(device):
    values = draw("low_bits", (1, 130, 132), seed=2, device=device)
    check(values, 16, tokens(range(-1, 131), device))
    check(values, 16, tokens(range(-1, 131), device), 1, 2)


def test_extents_may_be_read_from_a_slice(device):
    """Contiguous, yet not aligned to more than its own four bytes."""
    values = draw("normal", (2, 60, 7), seed=3, device=device)
    long = tokens([9, 5, 60, 33, 0, -4, 99, 16, 17, 1], device)
    for start in range(4):
        extents = long[start : start + 7]
        output = msa_topk_select(values, 16, extents)
        assert torch.equal(output, check(values, 16, extents.clone()))
