# SPDX-License-Identifier: Apache-2.0
"""Forced blocks are chosen whatever their score, each once, within each row's own extent."""

import pytest
import torch
from guards import check
from scores import F32, INF, MIXTURE, NAN, SHARED_SPECS, SINK_LOCAL, Spec, draw, tokens

FORCING = [spec for spec in SHARED_SPECS if spec.dtype == F32 and spec.begin + spec.end]


@pytest.mark.parametrize("worst", [-1e30, -INF, NAN], ids=str)
@pytest.mark.parametrize("spec", FORCING, ids=str)
def test_forced_blocks_are_chosen_whatever_their_score(device, spec, worst):
    topk, _, begin, end = spec
    values = draw("normal", (2, 200, 5), seed=1, device=device)
    values[:, :begin] = worst
    values[:, 200 - end :] = worst
    rows = check(values, topk, None, begin, end).reshape(-1, topk).tolist()
    forced = {*range(begin), *range(200 - end, 200)}
    assert all(forced <= set(row) and len(set(row)) == topk for row in rows)


def test_forced_blocks_with_the_best_scores_are_not_chosen_twice(device):
    values = draw("normal", (1, 100, 4), seed=2, device=device)
    values[:, 0] = values[:, 98:] = INF
    for row in check(values, 16, None, 1, 2).reshape(-1, 16).tolist():
        assert row[0] == 0
        assert row[-2:] == [98, 99]
        assert len(set(row)) == 16


def test_middle_gets_what_the_forced_blocks_leave(device):
    """With 1 + 2 of 16 forced, the 13 best of the middle join, no matter the forced scores."""
    values = torch.arange(60.0, device=device).view(1, 60, 1)
    assert check(values, 16, None, 1, 2).flatten().tolist() == [0, *range(45, 60)]
    assert check(-values, 16, None, 1, 2).flatten().tolist() == [*range(14), 58, 59]


def test_forced_end_is_each_tokens_own(device):
    extents = tokens(range(4, 60), device)
    values = draw("descending", (1, 60, 56), device=device)
    for n, row in zip(range(4, 60), check(values, 16, extents, 0, 1)[:, 0].tolist(), strict=True):
        assert row == sorted({*range(min(15, n)), n - 1}) + [-1] * max(0, 16 - n)


@pytest.mark.parametrize("spec", FORCING, ids=str)
def test_extents_shorter_than_the_forced_sum_shrink_the_end_first(device, spec):
    topk, _, begin, end = spec
    extents = tokens(range(-2, 10), device)
    values = draw(MIXTURE, (2, 30, 12), seed=3, device=device)
    output = check(values, topk, extents, begin, end)
    for n in range(begin + end + 1):
        kept = output[n + 2, 0].tolist()
        assert kept[:n] == list(range(n)), "all blocks of a short extent are forced"
        assert kept[n:] == [-1] * (topk - n)


@pytest.mark.parametrize("blocks", range(6))
def test_fewer_blocks_than_forced(device, blocks):
    topk, dtype, begin, end = SINK_LOCAL
    output = check(draw("minus_inf", (2, blocks, 3), dtype, device=device), topk, None, begin, end)
    kept = min(blocks, begin + end)
    last = list(range(max(begin, blocks - end), blocks)) if blocks > begin else []
    assert output[0, 0].tolist() == [*range(min(begin, blocks)), *last] + [-1] * (16 - kept)


@pytest.mark.parametrize("topk", [1, 2, 16, 64])
def test_every_split_of_forced_counts(topk):
    values = draw(MIXTURE, (1, 70, 17), seed=topk)
    for begin in range(0, topk + 1, max(1, topk // 8)):
        for end in range(0, topk - begin + 1, max(1, topk // 8)):
            check(values, topk, None, begin, end)
            check(values, topk, tokens(range(-1, 67, 4)), begin, end)


def test_forcing_all_of_topk_ignores_the_scores():
    for begin, end in [(16, 0), (0, 16), (7, 9)]:
        expected = [*range(begin), *range(100 - end, 100)]
        for kind in ("normal", "minus_inf", "all_nan"):
            assert check(draw(kind, (1, 100, 1)), 16, None, begin, end).flatten().tolist() == (
                expected
            )


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [Spec(16, F32, 16, 0), Spec(16, F32, 3, 13)], ids=str)
def test_forcing_all_of_topk_on_the_gpu(spec):
    """Own builds: with no room for the middle, the kernel has nothing to rank."""
    topk, _, begin, end = spec
    values = draw(MIXTURE, (2, 1000, 17), seed=1, device="cuda")
    check(values, topk, None, begin, end)
    check(values, topk, tokens(range(-1, 67, 4), "cuda"), begin, end)
