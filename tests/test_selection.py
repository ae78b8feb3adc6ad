# SPDX-License-Identifier: Apache-2.0
"""The chosen set is the true top-k of each row, in ascending order, ``-1`` as a tail."""

import pytest
import torch
from guards import check
from scores import KINDS, MIXTURE, PLAIN, SHARED_SPECS, WIDE, draw, generator

from flashinfer_msa.msa_ops import msa_topk_select


@pytest.mark.parametrize("kind", [*KINDS, MIXTURE])
def test_chosen_set_is_the_true_top_k(device, kind):
    gen = generator(1, device)
    for shape in [(1, 7, 3), (4, 128, 20), (2, 1000, 5), (1, 5000, 2)]:
        check(draw(kind, shape, seed=gen), 16)


@pytest.mark.parametrize("spec", SHARED_SPECS, ids=str)
def test_chosen_set_is_the_true_top_k_for_each_spec(device, spec):
    topk, dtype, begin, end = spec
    gen = generator(2, device)
    for shape in [(2, 40, 19), (3, 300, 19), (1, 3000, 19)]:
        check(draw(MIXTURE, shape, dtype, gen), topk, None, begin, end)


@pytest.mark.parametrize("topk", range(1, 65))
def test_every_topk_is_served(topk):
    check(draw(MIXTURE, (2, 80, 19), seed=topk), topk)
    check(draw(MIXTURE, (1, topk - 1, 19), seed=topk), topk)


@pytest.mark.gpu
@pytest.mark.parametrize("topk", [2, 3, 7, 8, 31, 33, 63])
def test_odd_topk_is_served_by_the_kernels(topk):
    """Own builds: widths just off the powers of two."""
    for blocks in (topk - 1, 80, 3000):
        check(draw(MIXTURE, (2, blocks, 19), seed=topk, device="cuda"), topk)


def test_topk_lies_between_its_neighbours(device):
    """The 16 best contain the best and lie within the 32 best."""
    values = draw("normal", (2, 500, 6), seed=3, device=device)
    rows = [msa_topk_select(values, k).flatten(0, 1).tolist() for k in (1, PLAIN.topk, 64)]
    for one, sixteen, more in zip(*rows, strict=True):
        assert set(one) < set(sixteen) < set(more)


def test_ids_ascend_then_minus_one(device):
    values = draw(MIXTURE, (3, 50, 64), seed=4, device=device)
    for row in msa_topk_select(values, 16).reshape(-1, 16).tolist():
        kept = [i for i in row if i >= 0]
        assert row == sorted(set(kept)) + [-1] * (16 - len(kept))
        assert all(i < 50 for i in kept)


def test_every_head_chooses_for_itself(device):
    values = torch.zeros(6, 96, 4, device=device)
    for h in range(6):
        values[h, 16 * h : 16 * (h + 1)] = 1.0
    output = check(values, 16)
    for h in range(6):
        assert output[:, h].tolist() == [list(range(16 * h, 16 * (h + 1)))] * 4


def test_every_token_chooses_for_itself(device):
    values = torch.zeros(2, 400, 400, device=device)
    token = torch.arange(400, device=device)
    values[:, token, token] = 1.0
    output = check(values, 1)
    assert output.flatten().tolist() == [s for s in range(400) for _ in range(2)]


@pytest.mark.parametrize("start", [0, 1, 31, 32, 100, 984])
def test_winners_are_found_wherever_they_stand(device, start):
    values = torch.full((1, 1000, 3), -5.0, device=device)
    values[:, start : start + 16] = torch.arange(16.0, device=device).view(1, 16, 1)
    assert check(values, 16)[0, 0].tolist() == list(range(start, start + 16))


@pytest.mark.parametrize("stride", [2, 3, 7, 32, 33, 60])
def test_winners_are_found_at_any_stride(device, stride):
    values = draw("normal", (2, 1000, 3), seed=5, device=device).clamp(max=3)
    ids = [5 + stride * i for i in range(16)]
    values[:, ids] = 10.0
    assert check(values, 16)[2, 1].tolist() == ids


def test_order_of_scores_does_not_matter(device):
    """A permutation of the blocks permutes the chosen set: scores are distinct."""
    values = torch.randperm(2048, generator=generator(6)).float().to(device).view(1, -1, 1)
    order = torch.randperm(2048, generator=generator(7))
    position = order.argsort().to(device)
    plain = check(values, WIDE.topk, None, WIDE.begin, WIDE.end)
    assert plain.shape == (1, 1, 32)
    chosen = msa_topk_select(values, 16)[0, 0].long()
    moved = msa_topk_select(values[:, order.to(device)].contiguous(), 16)[0, 0]
    assert moved.tolist() == position[chosen].sort().values.tolist()
