# SPDX-License-Identifier: Apache-2.0
"""The oracles and the torch reference are three independent programs, and agree."""

import numpy as np
import oracle
import pytest
import torch
from guards import assert_exact
from scores import (
    BF16,
    F16,
    F32,
    INF,
    KINDS,
    MIXTURE,
    NAN,
    TOKEN_EXTENTS,
    column,
    draw,
    draw_extent,
    from_bits,
    generator,
)  # fmt: skip

from flashinfer_msa.reference import msa_topk_select_reference as reference

DTYPES = [F32, F16, BF16]
FORCED = [(0, 0), (0, 1), (1, 2), (3, 0), (2, 3), (16, 0), (0, 16)]


def same_answer(values, topk, extent, begin, end):
    by_counting = oracle.count(values, topk, extent, begin, end)
    assert_exact(oracle.select(values, topk, extent, begin, end), by_counting, values, extent)
    assert_exact(reference(values, topk, extent, begin, end), by_counting, values, extent)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*KINDS, MIXTURE])
def test_reference_and_oracles_agree(kind, dtype):
    gen = generator(7)
    values = draw(kind, (2, 29, 9), dtype, gen)
    for begin, end in FORCED:
        for extent in (None, 20, *(draw_extent(k, 29, 9, 0, gen) for k in TOKEN_EXTENTS)):
            same_answer(values, 16, extent, begin, end)


@pytest.mark.parametrize("topk", [1, 2, 5, 31, 32, 64])
@pytest.mark.parametrize("blocks", [0, 1, 2, 15, 16, 17, 63, 64, 65])
def test_reference_and_oracles_agree_at_every_width(topk, blocks):
    values = draw(MIXTURE, (1, blocks, 19), seed=blocks)
    for begin, end in [(0, 0), (1, 0), (0, 1), (topk // 2, topk - topk // 2)]:
        if begin + end <= topk:
            same_answer(values, topk, None, begin, end)
            same_answer(values, topk, draw_extent("wild", blocks, 19, 0), begin, end)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_keys_order_every_half_precision_value_as_float64_does(dtype):
    values = from_bits(torch.arange(1 << 16), dtype)
    exact = values.double()
    exact = torch.where(exact.isnan(), INF, exact)
    by_key = torch.from_numpy(oracle.keys_of(values))
    order = by_key.sort(stable=True).indices
    assert torch.equal(exact[order].sort(stable=True).values, exact[order])
    # Equal keys are equal values and the other way round, so the two orders are one.
    assert torch.equal(by_key[order].diff() == 0, exact[order][1:] == exact[order][:-1])


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_reference_places_every_half_precision_value(dtype):
    """Windows over all 65,536 bit patterns, so each pattern meets its neighbours in bits."""
    values = from_bits(torch.arange(1 << 16), dtype).reshape(1, -1, 128)
    expected = oracle.select(values, 64)
    assert_exact(reference(values, 64), expected, values)
    values = from_bits(torch.arange(1 << 16), dtype).reshape(1, 128, -1)
    assert_exact(reference(values, 64), oracle.select(values, 64), values)


def test_keys_of_float32_order_as_float64_does():
    gen = generator(11)
    values = torch.cat([draw(kind, (1, 500, 1), F32, gen).flatten() for kind in KINDS])
    exact = values.double().numpy()
    exact = np.where(np.isnan(exact), np.inf, exact)
    keys = oracle.keys_of(values)
    for step in range(1, 40):
        assert np.array_equal(np.sign(keys - np.roll(keys, step)) > 0, exact > np.roll(exact, step))


def test_oracle_on_a_row_worked_out_by_hand():
    values = column([0.5, -INF, NAN, -0.0, 0.0, 0.5, -1.0, INF])
    # NaN and +inf first, then the two 0.5; a tie at zero goes to block 3.
    assert oracle.count(values, 5).flatten().tolist() == [0, 2, 3, 5, 7]
    assert oracle.count(values, 3).flatten().tolist() == [0, 2, 7]
    # Forced: block 0 and, within the first six, block 5. The middle is 1..4.
    assert oracle.count(values, 4, 6, 1, 1).flatten().tolist() == [0, 2, 3, 5]
    assert oracle.count(values, 8, 6, 1, 1).flatten().tolist() == [0, 2, 3, 4, 5, -1, -1, -1]


def test_oracles_return_a_tail_of_minus_one_only():
    values = draw("mostly_minus_inf", (3, 40, 20), seed=2)
    rows = oracle.select(values, 16).reshape(-1, 16)
    for row in rows.tolist():
        kept = [i for i in row if i >= 0]
        assert row == sorted(set(kept)) + [-1] * (16 - len(kept))
