# SPDX-License-Identifier: Apache-2.0
"""Same bits run to run, and for a row alone or inside any batch."""

import pytest
import torch
from guards import check, run_guarded
from scores import KINDS, LOCAL, MIXTURE, SHARED_SPECS, draw, draw_extent, generator, tokens

from flashinfer_msa.msa_ops import msa_topk_select

KINDS_OF_ROWS = len(KINDS)  # one row of each kind
# Some rows, in slices too, a quad of lanes a row, a lane a row, a row a thread block, long ones.
SHAPES = [(2, 1024, 512), (1, 4200, 520), (4, 128, 3000), (2, 1030, 2100), (4, 4096, 1)]
SHAPES += [(1, 20_000, 8), (4, 300, 50), (1, 8300, 130), (1, 8300, 530), (1, 4200, 40)]
SHAPES += [(1, 4200, 150)]


@pytest.mark.parametrize("spec", SHARED_SPECS, ids=str)
def test_a_row_alone_equals_the_row_in_any_company(device, spec):
    topk, dtype, begin, end = spec
    for blocks in (24, 300, 2500):
        values = draw(MIXTURE, (2, blocks, KINDS_OF_ROWS), dtype, seed=blocks, device=device)
        extents = draw_extent("long", blocks, KINDS_OF_ROWS, 0, seed=1, device=device)
        together = check(values, topk, extents, begin, end)
        for s in range(KINDS_OF_ROWS):
            for h in range(2):
                alone = values[h : h + 1, :, s : s + 1].contiguous()
                row = run_guarded(alone, topk, extents[s : s + 1].clone(), begin, end)
                assert torch.equal(row[0, 0], together[s, h])


@pytest.mark.parametrize("company", ["normal", "all_nan", "minus_inf", "constant"])
def test_neighbours_positions_and_batch_size_do_not_matter(device, company):
    row = draw("quantised", (1, 400, 1), seed=3, device=device)
    alone = run_guarded(row, 16)[0, 0]
    for count in (2, 33, 257):
        for position in {0, count // 2, count - 1}:
            batch = draw(company, (3, 400, count), seed=count, device=device)
            batch[1, :, position] = row[0, :, 0]
            assert torch.equal(run_guarded(batch, 16)[position, 1], alone)


def test_more_blocks_past_the_extent_do_not_matter(device):
    """P is padding here: a captured graph has the largest one, an eager call its own."""
    row = draw("quantised", (2, 100, 9), seed=4, device=device)
    alone = run_guarded(row, 16, tokens([100] * 9, device), 0, 1)
    for blocks in (101, 128, 513, 2049, 9000):
        padded = draw("any_bits", (2, blocks, 9), seed=blocks, device=device)
        padded[:, :100] = row
        assert torch.equal(run_guarded(padded, 16, tokens([100] * 9, device), 0, 1), alone)


def test_order_of_memory_does_not_matter(device):
    for shape in [(2, 60, 33), (1, 1500, 5), (4, 130, 1)]:
        values = draw(MIXTURE, shape, seed=5, device=device)
        plain = run_guarded(values, 16)
        for layout in ("s_padded", "p_contiguous", "p_padded", "p_token_major"):
            assert torch.equal(run_guarded(values, 16, layout=layout), plain)


def test_repeats_are_identical(device):
    repeats = 1000 if device.type == "cuda" else 10
    for kind, shape in [("ties_but_few", (2, 1024, 64)), ("quantised", (1, 8192, 4))]:
        values = draw(kind, shape, seed=6, device=device)
        first = check(values, 16)
        same = [(msa_topk_select(values, 16) == first).all() for _ in range(repeats)]
        assert torch.stack(same).all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_repeats_are_identical_beside_a_noisy_neighbour(shape):
    """A stream that hammers memory and the SMs changes the order of everything but the answer."""
    values = draw("ties_but_few+quantised+constant", shape, seed=7, device="cuda")
    extents = draw_extent("long", shape[1], shape[2], 0, seed=8, device="cuda")
    expected = check(values, LOCAL.topk, extents, LOCAL.begin, LOCAL.end)
    noise, other = torch.randn(2**24, device="cuda"), torch.cuda.Stream()
    output = torch.empty_like(expected)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(1000):
        with torch.cuda.stream(other):
            if i % 4 == 0:
                noise.mul_(1.0001).add_(noise.flip(0))
        msa_topk_select(values, LOCAL.topk, extents, output, LOCAL.begin, LOCAL.end)
        wrong += (output != expected).any()
    torch.cuda.synchronize()
    assert wrong.item() == 0


@pytest.mark.two_gpus
def test_two_gpus_give_the_same_bits():
    gen = generator(9)
    for spec in (LOCAL, SHARED_SPECS[0]):
        topk, dtype, begin, end = spec
        for shape in [(2, 90, 40), (1, 5000, 3)]:
            values = draw(MIXTURE, shape, dtype, gen)
            answers = [check(values.to(f"cuda:{i}"), topk, None, begin, end).cpu() for i in (0, 1)]
            assert torch.equal(*answers)
