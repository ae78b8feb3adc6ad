# SPDX-License-Identifier: Apache-2.0
"""Faults reported against other top-k selectors (ties, buffers, NaN), as inputs for this one.

The number is that of the case in the project's log of public reports; the answer is worked out
from the contract. ``test_public_reports_serving.py`` holds the cases on extents, layouts, devices.
"""

from pathlib import Path

import pytest
import torch
from guards import POISON, check
from scores import (
    INF,
    LOCAL,
    NAN,
    PLAIN,
    SINK_LOCAL,
    column,
    draw,
    from_bits,
    generator,
)  # fmt: skip

from flashinfer_msa.msa_ops import msa_topk_select

ONE_BITS = 0x3F800000


def ids(values, extent=None, begin=0, end=0, topk=16):
    """Return the ids of the first row, without the tail."""
    row = check(values, topk, extent, begin, end)[0, 0].tolist()
    kept = [i for i in row if i >= 0]
    assert row == kept + [-1] * (topk - len(kept))
    return kept


def plateau(blocks, winners, device, value=1.0):
    values = torch.zeros(1, blocks, 1, device=device)
    values[0, winners, 0] = value
    return values


def test_01_a_plateau_larger_than_any_list_fills_every_slot(device):
    values = plateau(8192, [100, 200, 300, 400, 500], device)
    assert ids(values) == [*range(11), 100, 200, 300, 400, 500]
    output = torch.full((1, 1, 16), POISON, dtype=torch.int32, device=device)
    assert msa_topk_select(values, 16, 8192, output).ne(POISON).all()


def test_02_plus_inf_at_the_threshold(device):
    assert ids(plateau(8320, slice(1, None, 2), device, INF)) == [*range(1, 32, 2)]


def test_03_winners_that_share_all_high_bits_with_the_losers(device):
    values = from_bits(ONE_BITS + torch.arange(8192)).to(device).view(1, -1, 1)
    assert ids(values) == [*range(8176, 8192)]
    assert ids(values.flip(1)) == [*range(16)]


def test_04_long_rows_are_right_on_every_row(device):
    count = 64 if device.type == "cuda" else 8
    check(draw("normal", (1, 65_536, count), seed=4, device=device), 16)


def test_06_long_rows_of_few_distinct_values(device):
    near_one = 1 + torch.rand(1, 32_768, 4, generator=generator(6)) / 64
    check(near_one.bfloat16().float().to(device), 16)


def test_07_many_long_rows_of_zeros(device):
    """The same shape is for the race detector of the sanitizer run."""
    count = 512 if device.type == "cuda" else 16
    output = check(torch.zeros(1, 8192, count, device=device), 16)
    assert output.eq(torch.arange(16, device=device)).all()


def test_10_constant_rows_among_random_ones(device):
    values = draw("normal", (1, 2048, 256 if device.type == "cuda" else 32), device=device)
    values[..., ::3] = 0.0
    expected = check(values, 16)
    assert expected[::3].eq(torch.arange(16, device=device)).all()
    assert expected.diff(dim=-1).gt(0).all(), "ids are distinct"
    repeats = 200 if device.type == "cuda" else 3
    same = [(msa_topk_select(values, 16) == expected).all() for _ in range(repeats)]
    assert torch.stack(same).all()


def test_11_a_few_positives_above_a_plateau(device):
    assert ids(plateau(1024, [7, 70, 700], device)) == sorted({*range(14), 70, 700})


def test_12_zeros_of_both_signs(device):
    values = torch.tensor([-0.0] * 20 + [0.0] * 20, device=device).view(1, -1, 1)
    assert ids(values) == ids(-values) == [*range(16)]


def test_13_the_last_two_bits_decide(device):
    values = from_bits(ONE_BITS + torch.arange(4096)).to(device).view(1, -1, 1)
    assert ids(values, begin=1, topk=16) == [0, *range(4081, 4096)]
    shuffled = values[:, torch.randperm(4096, generator=generator(13)).to(device)].contiguous()
    check(shuffled, 16, None, 1, 0)


@pytest.mark.parametrize("kind", ["quantised", "ties_but_few"])
def test_15_18_tied_rows_do_not_change_from_run_to_run(device, kind):
    """64ths of a unit, as a scorer with few bits gives."""
    values = draw(kind, (1, 1024, 512 if device.type == "cuda" else 32), device=device)
    values = values.mul(64).round().div(64)
    expected = check(values, 16)
    assert all(torch.equal(msa_topk_select(values, 16), expected) for _ in range(20))


def test_20_fewer_blocks_than_slots_with_ties(device):
    assert ids(column([1, 2, 5, 4, 5], device=device)) == [0, 1, 2, 3, 4]
    assert ids(column([3, 2, 3, 2, 1, 1], device=device)) == [0, 1, 2, 3, 4, 5]
    assert ids(column([3, 2, 3, 2, 1, 1], device=device), topk=1) == [0]


@pytest.mark.parametrize("blocks", [16, 17, 32, 64, 100, 128, 256, 1024, 2048, 4096, 16_384])
def test_21_equal_rows_in_every_size_regime(device, blocks):
    for size in (blocks - 1, blocks, blocks + 1):
        for count in (1, 40):
            output = check(torch.ones(1, size, count, device=device), 16)
            assert output[..., : min(16, size)].eq(torch.arange(min(16, size), device=device)).all()


def test_22_nan_between_infinities(device):
    values = torch.arange(40.0, device=device).view(1, -1, 1)
    values[:, 5:26] = INF
    values[:, 30] = NAN
    assert ids(values) == [*range(5, 21)]


def test_23_negative_nan(device):
    values = torch.arange(64.0).view(1, -1, 1)
    values[0, 5] = from_bits(0xFFC00000)
    values[0, 9] = from_bits(0x7FC00000)
    assert ids(values.to(device)) == [5, 9, *range(50, 64)]


@pytest.mark.parametrize("count", [2, 15, 16, 17, 30])
def test_24_several_nans_at_the_threshold(device, count):
    values = plateau(200, slice(50, 50 + count), device, NAN)
    nans = [*range(50, 50 + min(16, count))]
    assert ids(values) == [*range(16 - len(nans)), *nans]


@pytest.mark.parametrize("share", [0.83, 1.0])
def test_25_rows_of_mostly_nan(device, share):
    is_nan = torch.rand(4096, generator=generator(25)) < share
    values = torch.where(is_nan, NAN, torch.randn(4096, generator=generator(26)))
    assert ids(values.to(device).view(1, -1, 1)) == is_nan.nonzero().flatten()[:16].tolist()


@pytest.mark.parametrize("count", [3, 512, 1024])
def test_27_28_a_nan_row_inside_a_batch(device, count):
    values = draw("normal", (1, 200, count), device=device)
    before = msa_topk_select(values, 16)
    row = 0 if count > 3 else 1
    values[..., row] = NAN
    output = check(values, 16)
    assert output[row, 0].tolist() == [*range(16)]
    others = torch.arange(count, device=device) != row
    assert torch.equal(output[others], before[others])


@pytest.mark.parametrize("blocks", [5, 100, 1000, 20_000])
def test_29_30_one_finite_block_in_every_size_regime(device, blocks):
    for finite in {0, blocks // 2, blocks - 1}:
        values = torch.full((1, blocks, 3), -INF, device=device)
        values[:, finite] = 0.5
        assert ids(values) == [finite]


def test_31_slots_past_a_short_extent_are_overwritten(device):
    output = torch.full((2, 1, 16), 777, dtype=torch.int32, device=device)
    msa_topk_select(draw("normal", (1, 50, 2), device=device), 16, 3, output)
    assert output.tolist() == [[[0, 1, 2] + [-1] * 13]] * 2


@pytest.mark.parametrize("spec", [PLAIN, LOCAL, SINK_LOCAL], ids=str)
@pytest.mark.parametrize("finite", [0, 1, 8, 15, 16])
def test_34_few_finite_blocks_with_and_without_forced_ones(device, finite, spec):
    _, _, begin, end = spec
    values = torch.full((1, 90, 1), -INF, device=device)
    where = [*range(10, 10 + 4 * finite, 4)]
    values[0, where, 0] = torch.arange(float(finite), device=device)
    best = where[max(0, finite - (16 - begin - end)) :]
    assert ids(values, None, begin, end) == [*range(begin), *best, *range(90 - end, 90)]


@pytest.mark.parametrize("forced", [-INF, NAN, 0.0], ids=str)
def test_35_a_forced_block_may_be_minus_inf_or_nan(device, forced):
    values = torch.full((1, 160, 1), -INF, device=device)
    values[0, [3, 77, 150]] = 1.0
    values[0, 159] = forced
    assert ids(values, end=1) == [3, 77, 150, 159]


def test_36_subnormal_scores(device):
    assert ids(from_bits(torch.arange(1, 33)).to(device).view(1, -1, 1)) == [*range(16, 32)]


# Cases whose whole kind has a file of its own.
ELSEWHERE = [
    ("16", "determinism", "test_repeats_are_identical_beside_a_noisy_neighbour"),
    ("19", "determinism", "test_two_gpus_give_the_same_bits"),
    ("42", "graphs", "test_stale_padded_rows_are_clamped_and_harmless"),
    ("62, 63", "sizes", "test_offsets_past_32_bits_are_right"),
    ("73", "streams_devices", "test_calls_finish_beside_a_kernel_that_fills_the_gpu"),
    ("75", "graphs", "test_replay_follows_scores_and_extents_changed_in_place"),
    ("76", "compile", "test_fullgraph_writes_output_in_place"),
]


@pytest.mark.parametrize(("numbers", "file", "name"), ELSEWHERE, ids=[e[0] for e in ELSEWHERE])
def test_cases_of_other_files_are_there(numbers, file, name):
    text = (Path(__file__).parent / f"test_{file}.py").read_text()
    assert f"def {name}(" in text
