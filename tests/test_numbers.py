# SPDX-License-Identifier: Apache-2.0
"""Scores compare as IEEE values: NaN as +inf, -0 as +0, subnormals as themselves."""

import pytest
import torch
from guards import check
from scores import (
    BF16,
    BFLOAT,
    F16,
    F32,
    FORMATS,
    HALF,
    INF,
    NAN,
    PLAIN,
    column,
    draw,
    from_bits,
)  # fmt: skip

SPECS = {F32: PLAIN, F16: HALF, BF16: BFLOAT}  # the shared builds, one for each dtype
DTYPES = pytest.mark.parametrize("dtype", SPECS, ids=str)


def ids_of(values, dtype=F32, topk=16, begin=None, end=None):
    spec = SPECS[dtype]
    begin, end = spec.begin if begin is None else begin, spec.end if end is None else end
    return [i for i in check(values, topk, None, begin, end).flatten().tolist() if i >= 0]


@DTYPES
def test_nan_of_either_sign_and_any_payload_counts_as_plus_inf(device, dtype):
    f = FORMATS[dtype]
    nans = [f.inf | 1, f.inf | (1 << (f.mantissa - 1)), f.inf | ((1 << f.mantissa) - 1)]
    values = column(range(100), dtype, device)
    for i, bits in enumerate(nans):
        values[0, 5 + i] = from_bits(bits, dtype).to(device)
        values[0, 15 + i] = from_bits(bits + f.sign, dtype).to(device)
    assert ids_of(values, dtype) == [5, 6, 7, 15, 16, 17, *range(90, 100)]


@DTYPES
def test_nan_ties_with_plus_inf_by_id(device, dtype):
    values = torch.zeros(1, 64, 1, dtype=dtype, device=device)
    values[0, 1:64:2] = INF
    values[0, 0:40:2] = NAN
    assert ids_of(values, dtype)[:15] == list(range(15))


def test_all_nan_row_leaves_its_neighbours_alone(device):
    values = draw("normal", (2, 300, 3), device=device)
    alone = check(values[..., [0, 2]].contiguous(), 16)
    values[..., 1] = NAN
    output = check(values, 16)
    assert output[1].tolist() == [list(range(16))] * 2
    assert torch.equal(output[[0, 2]], alone)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
def test_nans_fill_from_the_lowest(device, count):
    values = torch.zeros(1, 200, 2, device=device)
    values[:, 50 : 50 + count] = NAN
    nans = list(range(50, 50 + min(count, 16)))
    assert check(values, 16)[1, 0].tolist() == [*range(16 - len(nans)), *nans]


@DTYPES
def test_minus_inf_is_never_added(device, dtype):
    values = torch.full((2, 90, 3), -INF, dtype=dtype, device=device)
    values[:, [3, 40, 77]] = torch.finfo(dtype).min
    spec = SPECS[dtype]
    row = sorted({3, 40, 77, *range(90 - spec.end, 90)})
    output = check(values, 16, None, spec.begin, spec.end)
    assert output[2, 1].tolist() == row + [-1] * (16 - len(row))


def test_all_minus_inf_gives_only_minus_one(device):
    for blocks in (1, 16, 100, 5000):
        output = check(torch.full((2, blocks, 3), -INF, device=device), 16)
        assert output.eq(-1).all()


@pytest.mark.parametrize("finite", [0, 1, 8, 15, 16, 17])
def test_only_blocks_above_minus_inf_count(device, finite):
    for blocks in (20, 300, 5000):
        values = torch.full((1, blocks, 5), -INF, device=device)
        values[:, blocks - finite :] = -1.0
        output = check(values, 16)
        kept = min(finite, 16)
        first = blocks - finite
        assert output[4, 0].tolist() == [*range(first, first + kept)] + [-1] * (16 - kept)


@DTYPES
def test_zeros_of_both_signs_are_equal(device, dtype):
    values = torch.zeros(1, 40, 1, dtype=dtype, device=device)
    values[0, :20] = -0.0
    assert ids_of(values, dtype)[:15] == list(range(15))
    values[0, :20], values[0, 20:] = 0.0, -0.0
    assert ids_of(values, dtype)[:15] == list(range(15))


@DTYPES
def test_subnormals_are_ordinary_numbers(device, dtype):
    # 100 smallest subnormals ascending: a flush to zero would make all of them tie.
    values = from_bits(torch.arange(1, 101), dtype).to(device).view(1, -1, 1)
    assert ids_of(values, dtype) == list(range(84, 100))
    # Negative ones, and zero above them.
    negative = from_bits(torch.arange(1, 101) + FORMATS[dtype].sign, dtype).to(device)
    assert ids_of(negative.view(1, -1, 1), dtype)[:15] == list(range(15))


@DTYPES
def test_smallest_steps_round_zero_are_ordered(device, dtype):
    """-tiny < 0 < tiny: with topk 1 the subnormal wins, and zero beats the negative one."""
    sign = FORMATS[dtype].sign
    values = from_bits([sign + 1, 0, 1], dtype).to(device)
    topk = SPECS[dtype].topk
    assert topk == 16
    pad = from_bits([sign + 2], dtype).to(device)
    row = torch.cat([pad.repeat(20), values, pad.repeat(20)]).view(1, -1, 1)
    chosen = ids_of(row, dtype)
    assert {20, 21, 22} <= set(chosen)
    row[0, :19] = 0.0  # zeros crowd the negative one out, not the positive one
    chosen = ids_of(row, dtype)
    assert 22 in chosen
    assert 20 not in chosen


@DTYPES
def test_neighbours_in_the_last_bit_are_told_apart(device, dtype):
    f = FORMATS[dtype]
    for start in (f.one, 1 << f.mantissa, f.inf - 101):
        values = from_bits(torch.arange(start, start + 100), dtype).to(device).view(1, -1, 1)
        assert ids_of(values, dtype) == list(range(84, 100))
        assert ids_of(-values, dtype)[:15] == list(range(15))


@DTYPES
def test_extreme_values_keep_their_order(device, dtype):
    info = torch.finfo(dtype)
    ladder = [info.min, -1.0, -info.tiny, 0.0, info.tiny, 1.0, info.max, INF]
    values = torch.full((1, 60, 1), -INF, dtype=dtype, device=device)
    for i, value in enumerate(ladder):
        values[0, 7 * i + 1] = value
    spec = SPECS[dtype]
    forced = [59] if spec.end else []
    assert ids_of(values, dtype) == [*(7 * i + 1 for i in range(8)), *forced]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_every_half_precision_value_is_placed(device, dtype):
    """All 65,536 bit patterns, each among 511 neighbours in bits and among 511 far ones."""
    spec = SPECS[dtype]
    values = from_bits(torch.arange(1 << 16), dtype).to(device)
    check(values.reshape(1, 512, 128), spec.topk, None, spec.begin, spec.end)
    check(values.reshape(1, 128, 512), spec.topk, None, spec.begin, spec.end, layout="p_contiguous")


def test_one_long_row_holds_every_pattern_of_the_high_bits(device):
    """65,536 float32 whose upper halves are all different."""
    values = from_bits(torch.arange(-(2**31), 2**31, 2**16)).to(device)
    check(values.view(1, -1, 1), 16)
