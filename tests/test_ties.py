# SPDX-License-Identifier: Apache-2.0
"""Equal scores go to the lower block id, in every size regime."""

import pytest
import torch
from guards import check
from scores import LOCAL, SHARED_SPECS, draw, generator, tokens

BLOCKS = [1, 15, 16, 17, 33, 128, 129, 1000, 2049, 8193, 20_000]


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1e38, float("inf"), float("nan")], ids=str)
def test_lower_id_wins_when_all_scores_are_equal(device, blocks, value):
    kept = min(16, blocks)
    row = [*range(kept)] + [-1] * (16 - kept)
    for shape in [(1, blocks, 1), (2, blocks, 33)]:
        output = check(torch.full(shape, value, device=device), 16)
        assert output.tolist() == [[row] * shape[0]] * shape[2]


@pytest.mark.parametrize("winners", [0, 1, 2, 15, 16, 17])
@pytest.mark.parametrize("blocks", [40, 700, 9000])
def test_lower_id_wins_ties_below_the_winners(device, blocks, winners):
    """All equal but a few: the plateau fills exactly the slots that the winners leave."""
    values = torch.zeros(2, blocks, 9, device=device)
    for s in range(9):
        ids = torch.randperm(blocks, generator=generator(s))[:winners]
        values[:, ids.to(device), s] = 1.0 + s
    check(values, 16)
    check(values, 16, None, LOCAL.begin, LOCAL.end)


@pytest.mark.parametrize("levels", [2, 3, 5, 16, 64])
def test_lower_id_wins_at_every_level(device, levels):
    gen = generator(levels, device)
    for blocks in (100, 3000):
        shape = (2, blocks, 40)
        values = torch.randint(0, levels, shape, generator=gen, device=device).float()
        check(values, 16)
        check(-values, 16)


@pytest.mark.parametrize("spec", SHARED_SPECS, ids=str)
def test_lower_id_wins_ties_for_each_spec(device, spec):
    topk, dtype, begin, end = spec
    for kind in ("constant", "quantised", "ties_but_few", "zeros", "all_nan"):
        check(draw(kind, (2, 600, 9), dtype, seed=5, device=device), topk, None, begin, end)


@pytest.mark.parametrize("first", [0, 1, 100, 127, 128, 983])
def test_ties_that_cross_any_boundary(device, first):
    """Thirty equal winners from `first` on: the first 16 of them are chosen."""
    values = torch.zeros(1, 1013, 4, device=device)
    values[:, first : first + 30] = 1.0
    assert check(values, 16)[3, 0].tolist() == list(range(first, first + 16))


def test_two_ties_at_the_ends_of_a_row(device):
    values = torch.zeros(1, 8192, 1, device=device)
    values[:, [0, 8191]] = 1.0
    assert check(values, 1).item() == 0
    assert check(values, 16).flatten().tolist() == [*range(15), 8191]


def test_ties_do_not_reach_past_the_extent(device):
    extents = tokens([0, 1, 15, 16, 17, 40], device)
    output = check(torch.zeros(2, 40, 6, device=device), 16, extents)
    for n, row in zip(extents.tolist(), output[:, 1].tolist(), strict=True):
        kept = min(n, 16)
        assert row == [*range(kept)] + [-1] * (16 - kept)
