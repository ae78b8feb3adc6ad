# SPDX-License-Identifier: Apache-2.0
"""Every shape is served: sizes round each power of two, no tile multiples, no upper bound."""

import pytest
import torch
from guards import assert_exact, check, run_guarded
from scores import F16, HALF, KINDS, LOCAL, MIXTURE, PLAIN, draw, tokens

from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference

LAYOUT = pytest.mark.parametrize("layout", ["s_contiguous", "p_contiguous"])
NAMES = list(KINDS)


def around(exponents):
    return sorted({2**j + d for j in exponents for d in (-1, 0, 1)} - {0})


def needs_memory(gib):
    if torch.cuda.mem_get_info()[0] < gib * 2**30:
        pytest.skip(f"needs {gib} GiB of free GPU memory")


def some_kinds(seed, count):
    return "+".join(NAMES[(seed + i) % len(NAMES)] for i in range(count))


@LAYOUT
@pytest.mark.parametrize("blocks", around(range(13)))
def test_blocks_round_each_power_of_two(device, blocks, layout):
    for heads, count in [(1, 1), (2, 19)]:
        values = draw(some_kinds(blocks, 19), (heads, blocks, count), seed=blocks, device=device)
        check(values, 16, layout=layout)
        extents = torch.linspace(-1, blocks + 1, count).int().to(device)
        check(values, LOCAL.topk, extents, LOCAL.begin, LOCAL.end, layout=layout)


@LAYOUT
@pytest.mark.parametrize("blocks", around(range(13, 18)))
def test_long_rows_round_each_power_of_two(device, blocks, layout):
    values = draw(some_kinds(blocks, 3), (1, blocks, 3), seed=blocks, device=device)
    check(values, 16, layout=layout)
    extents = tokens([blocks, blocks - 1, blocks // 2], device)
    check(values, LOCAL.topk, extents, LOCAL.begin, LOCAL.end, layout=layout)


@LAYOUT
@pytest.mark.parametrize("count", around(range(13)))
def test_tokens_round_each_power_of_two(device, count, layout):
    for blocks in (9, 130) if count < 1000 else (23,):
        values = draw(some_kinds(count, 17), (1, blocks, count), seed=count, device=device)
        extents = torch.linspace(-1, blocks + 1, count).int().to(device)
        check(values, LOCAL.topk, extents, LOCAL.begin, LOCAL.end, layout=layout)


@LAYOUT
@pytest.mark.parametrize("heads", range(1, 10))
def test_any_number_of_heads(device, heads, layout):
    for blocks, count in [(5, 1), (130, 33), (700, 4), (3000, 1)]:
        check(draw(MIXTURE, (heads, blocks, count), seed=heads, device=device), 16, layout=layout)


@pytest.mark.parametrize("blocks", [0, 1, 2, 15, 16, 17, 31, 32, 63, 64, 65])
@pytest.mark.parametrize("topk", [1, 16, 32, 64])
def test_fewer_blocks_than_topk(device, topk, blocks):
    values = draw("normal", (2, blocks, 5), seed=blocks, device=device)
    begin, end = (1, 2) if topk == 32 else (0, 0)
    output = check(values, topk, None, begin, end)
    assert output.shape == (5, 2, topk)
    if blocks <= topk:
        row = [*range(blocks)] + [-1] * (topk - blocks)
        assert output.tolist() == [[row] * 2] * 5


@LAYOUT
def test_the_last_block_of_a_long_row_is_seen(device, layout):
    """A bound on the number of blocks would lose it."""
    for blocks in (4097, 8192, 16_384, 16_385, 32_768, 131_072):
        values = torch.zeros(1, blocks, 2, device=device)
        marked = sorted({i for i in (4096, 8192, 16_384) if i < blocks} | {blocks - 1})
        values[:, marked] = 1.0
        row = sorted({*marked, *range(16 - len(marked))})
        assert check(values, 16, layout=layout)[1, 0].tolist() == row
        forced = check(-values, LOCAL.topk, None, LOCAL.begin, LOCAL.end, layout=layout)
        assert forced[0, 0].tolist() == [*range(15), blocks - 1]


@LAYOUT
@pytest.mark.parametrize("heads", [1000, 70_000])
def test_more_heads_than_a_grid_axis_holds(device, layout, heads):
    check(draw("normal", (heads, 5, 1), device=device), 16, layout=layout)


@pytest.mark.parametrize("shape", [(0, 8, 4), (2, 8, 0), (0, 8, 0), (0, 0, 0), (2, 0, 0)], ids=str)
def test_no_rows_give_an_empty_result(device, shape):
    for extent in (None, tokens([5] * shape[2], device)):
        output = msa_topk_select(torch.empty(shape, device=device), 16, extent)
        assert output.shape == (shape[2], shape[0], 16)
        assert output.dtype == torch.int32
        check(torch.empty(shape, device=device), 16, extent, 1, 2)


def test_no_blocks_give_only_minus_one(device):
    for extent in (None, tokens([0, 1, -1, 2**31 - 1], device)):
        for begin, end in [(0, 0), (1, 2)]:
            output = check(torch.empty(3, 0, 4, device=device), 16, extent, begin, end)
            assert output.tolist() == [[[-1] * 16] * 3] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True], ids=["s_contiguous", "p_contiguous"])
@pytest.mark.parametrize("shape", [(4, 8192, 65_537), (1, 16_384, 65_537)], ids=str)
def test_offsets_past_32_bits_are_right(shape, transposed):
    """More than 2^31 scores, and more than 2^32 bytes: a 32-bit offset reads another row."""
    heads, blocks, count = shape
    needs_memory(12)
    if transposed:
        values = torch.zeros(heads, count, blocks, device="cuda").permute(0, 2, 1)
    else:
        values = torch.zeros(shape, device="cuda")
    values[-1, :, -1] = torch.arange(blocks, device="cuda")
    output = msa_topk_select(values, 16)
    assert output[-1, -1].tolist() == [*range(blocks - 16, blocks)]
    output[-1, -1] = torch.arange(16, device="cuda")
    assert output.eq(torch.arange(16, device="cuda")).all()


@pytest.mark.gpu
@pytest.mark.parametrize("count", [9, 2100, 4200])
@pytest.mark.parametrize("stride", [2**31 - 1, 2**31, 2**31 + 1])
def test_strides_past_32_bits_are_right(stride, count):
    """Other kernels take over where the stride of the blocks needs more than 32 bits."""
    needs_memory(12)
    blocks = 3
    drawn = draw("normal+quantised+some_nan", (1, blocks, count), F16, seed=3, device="cuda")
    memory = torch.empty((blocks - 1) * stride + count, dtype=F16, device="cuda")
    values = memory.as_strided(drawn.shape, (0, stride, 1))
    values.copy_(drawn)
    extents = torch.arange(count, device="cuda").int() % (blocks + 2)
    topk, _, begin, end = HALF
    output = msa_topk_select(values, topk, extents, None, begin, end)
    assert_exact(output, reference(drawn, topk, extents, begin, end), drawn, extents)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "count"), [(4, 2**25 + 3), (19_200_000, 8)])
def test_outputs_past_32_bits_are_right(heads, count):
    """2^31 ids and more, and as many between the tokens of a warp: each is where it belongs."""
    needs_memory(16)
    values = torch.zeros(heads, 3, count, device="cuda")
    values[-1, :, -1] = torch.tensor([float("-inf"), 1.0, float("-inf")], device="cuda")
    output = msa_topk_select(values, 16)
    assert output[-1, -1].tolist() == [1] + [-1] * 15
    output[-1, -1] = output[0, 0]
    expected = torch.tensor([0, 1, 2] + [-1] * 13, dtype=torch.int32, device="cuda")
    for part in output.view(-1, 16).split(2**24):
        assert part.eq(expected).all()


@pytest.mark.gpu
@LAYOUT
def test_large_prefill_is_right_on_every_row(layout):
    """Too large for the oracle on the host: the torch reference answers on the GPU."""
    for shape in [(4, 512, 8192), (4, 2048, 2048), (2, 8192, 1024), (4, 128, 20_000)]:
        values = draw(MIXTURE, shape, seed=1, device="cuda")
        extents = torch.linspace(1, shape[1], shape[2]).int().cuda()
        for spec in (PLAIN, LOCAL):
            rest = (spec.topk, extents, spec.begin, spec.end)
            assert_exact(run_guarded(values, *rest, layout=layout), reference(values, *rest))


@pytest.mark.gpu
@LAYOUT
@pytest.mark.parametrize("blocks", [65_537, 262_143, 262_145, 300_000])
def test_many_very_long_rows_are_right(layout, blocks):
    """Ids past 16 bits, in rows enough for the kernels that count on short ids."""
    needs_memory(60)
    count = 2049
    values = draw(MIXTURE, (1, blocks, count), seed=2, device="cuda")
    extents = torch.linspace(blocks // 2, blocks, count).int().cuda()
    output = run_guarded(values, LOCAL.topk, extents, LOCAL.begin, LOCAL.end, layout=layout)
    for first in range(0, count, 128):
        part = slice(first, first + 128)
        expected = reference(values[..., part], LOCAL.topk, extents[part], LOCAL.begin, LOCAL.end)
        assert_exact(output[part], expected, values[..., part], extents[part])
