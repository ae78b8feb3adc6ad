# SPDX-License-Identifier: Apache-2.0
"""Both orders of memory, padded, sliced, unaligned or expanded, give the same answer."""

import itertools

import pytest
import torch
from dispatch import kernel_of
from guards import LAYOUTS, check
from scores import (
    BFLOAT,
    HALF,
    LOCAL,
    MIXTURE,
    PLAIN,
    SINK_LOCAL,
    draw,
    draw_extent,
    generator,
)  # fmt: skip

from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference

SHAPES = [(1, 1, 1), (1, 17, 1), (1, 1, 9), (3, 33, 5), (2, 128, 32), (4, 515, 7), (1, 4100, 3)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spec", [PLAIN, SINK_LOCAL, HALF, BFLOAT], ids=str)
def test_every_layout_gives_the_answer(device, spec, layout):
    topk, dtype, begin, end = spec
    gen = generator(5, device)
    for shape in SHAPES:
        values = draw(MIXTURE, shape, dtype, gen)
        extents = draw_extent("wild", shape[1], shape[2], 0, gen)
        check(values, topk, extents, begin, end, layout=layout)


@pytest.mark.parametrize("offset", range(1, 9))
@pytest.mark.parametrize("layout", ["s_contiguous", "p_contiguous"])
def test_any_storage_offset_gives_the_answer(device, layout, offset):
    """Vector loads need an alignment that a slice of a buffer does not have."""
    gen = generator(6, device)
    for topk, dtype, begin, end in (LOCAL, HALF, BFLOAT):
        for shape in [(2, 64, 8), (1, 260, 16), (3, 37, 5)]:
            extents = draw_extent("random", shape[1], shape[2], 0, gen)
            values = draw(MIXTURE, shape, dtype, gen)
            check(values, topk, extents, begin, end, layout=layout, offset=offset)


@pytest.mark.parametrize("pitch", [1, 2, 3, 4, 5, 8, 31])
def test_any_row_pitch_gives_the_answer(device, pitch):
    """Padding of each alignment, in either order of memory."""
    wide = draw("normal", (2, 70, 40 + pitch), seed=pitch, device=device)
    slice_s = wide[..., :40]
    assert torch.equal(msa_topk_select(slice_s, 16), check(slice_s.contiguous(), 16))
    tall = draw("normal", (2, 40, 70 + pitch), seed=pitch, device=device)
    slice_p = tall[..., :70].permute(0, 2, 1)
    assert torch.equal(msa_topk_select(slice_p, 16), check(slice_p.contiguous(), 16))


@pytest.mark.gpu
@pytest.mark.parametrize("past", range(9))
@pytest.mark.parametrize("layout", ["s_contiguous", "p_contiguous"])
@pytest.mark.parametrize("spec", [LOCAL, HALF, BFLOAT], ids=str)
def test_lines_may_start_anywhere_in_16_bytes(spec, layout, past):
    """Many rows, which are copied in such chunks, by each of the kernels for them."""
    device = torch.device("cuda")
    topk, dtype, begin, end = spec
    blocks, count = 545 + past, 3200 + past
    shapes = [(heads, blocks, count) for heads in (2, 3, 4)]
    if layout == "s_contiguous":
        shapes += [(1, blocks, 1100 + past), (3, blocks, 700 + past)]
    else:
        shapes += [(1, 1100 + past, 1800 + past), (2, 2050 + past, 260 + past)]
        shapes += [(3, 1100 + past, 800 + past)]
    for heads, blocks, count in shapes:
        assert kernel_of(topk, (heads, blocks, count), layout).startswith("RowPerLane")
        gen = generator(heads, device)
        values = draw(MIXTURE, (heads, blocks, count), dtype, gen)
        extents = draw_extent("long", blocks, count, 0, gen)
        check(values, topk, extents, begin, end, layout=layout, offset=past * heads % 5)


def test_slices_of_each_axis_are_read_through_their_strides(device):
    base = draw("normal", (6, 90, 50), seed=7, device=device)
    views = {
        "heads": base[1:4],
        "every other head": base[::2],
        "blocks": base[:, 13:77],
        "tokens": base[..., 5:48],
        "all": base[2:5, 3:80, 1:30],
        "one token": base[..., 9:10],
        "one block": base[:, 9:10],
    }
    for what, view in views.items():
        got = msa_topk_select(view, 16)
        assert torch.equal(got, check(view.contiguous(), 16)), what
        transposed = view.permute(0, 2, 1).contiguous().permute(0, 2, 1)
        assert torch.equal(msa_topk_select(transposed, 16), got), what


def test_axes_of_length_one_may_have_any_stride(device):
    """torch leaves their strides as they come; they are never used."""
    for shape in [(1, 30, 5), (2, 1, 5), (2, 30, 1), (1, 1, 5), (1, 30, 1), (1, 1, 1)]:
        values = draw("normal", shape, seed=8, device=device)
        strides = [n if size > 1 else 12345 for n, size in zip(values.stride(), shape, strict=True)]
        view = values.as_strided(shape, strides)
        assert torch.equal(msa_topk_select(view, 16), check(values, 16))


def test_expanded_heads_all_choose_the_same(device):
    one = draw("normal", (1, 300, 12), seed=9, device=device)
    output = msa_topk_select(one.expand(5, -1, -1), 16)
    assert torch.equal(output, check(one, 16).expand(-1, 5, -1))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_other_orders_of_axes_are_answered_or_refused(device, order):
    """Never read as if they were contiguous."""
    values = draw("normal", (3, 40, 7), seed=10, device=device)
    memory = values.permute(order).contiguous()
    view = memory.permute([order.index(axis) for axis in range(3)])
    supported = 1 in (view.stride(1), view.stride(2))
    if supported:
        assert torch.equal(msa_topk_select(view, 16), check(values, 16))
    else:
        with pytest.raises(ValueError, match="max_score"):
            msa_topk_select(view, 16)


def test_strides_with_no_contiguous_axis_are_refused(device):
    values = draw("normal", (2, 40, 12), device=device)[:, ::2, ::2]
    with pytest.raises(ValueError, match="max_score"):
        msa_topk_select(values, 16)


def test_expanded_blocks_or_tokens_are_answered_or_refused(device):
    """A stride of 0 over blocks or tokens: a copy, a right answer or an error; never garbage."""
    for shape, axis in [((2, 1, 9), 1), ((2, 40, 1), 2)]:
        size = [2, 40, 9]
        view = draw("normal", shape, seed=11, device=device).expand(size)
        assert view.stride(axis) == 0
        try:
            output = msa_topk_select(view, 16)
        except ValueError:
            continue
        assert torch.equal(output, reference(view.contiguous(), 16))
