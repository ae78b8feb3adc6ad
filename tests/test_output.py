# SPDX-License-Identifier: Apache-2.0
"""``output`` is written in place, every slot of it and nothing else, and returned."""

import pytest
import torch
from guards import POISON, check, run_guarded
from scores import LOCAL, MIXTURE, SHARED_SPECS, draw, generator, tokens

from flashinfer_msa.msa_ops import msa_topk_select


def test_output_is_allocated_when_none(device):
    values = draw("normal", (3, 50, 7), device=device)
    output = msa_topk_select(values, 16)
    assert (output.shape, output.dtype, output.device) == ((7, 3, 16), torch.int32, values.device)
    assert output.is_contiguous()
    assert not output.requires_grad
    assert torch.equal(output, check(values, 16))


def test_output_is_written_in_place_and_returned(device):
    values = draw("normal", (3, 50, 7), device=device)
    output = torch.full((7, 3, 16), POISON, dtype=torch.int32, device=device)
    pointer = output.data_ptr()
    result = msa_topk_select(values, 16, output=output)
    assert result is output
    assert output.data_ptr() == pointer
    assert torch.equal(output, check(values, 16))


def test_arguments_may_be_given_by_position(device):
    values = draw("normal", (3, 50, 7), device=device)
    extents = tokens([50, 3, 0, 17, 16, 49, 1], device)
    output = torch.empty((7, 3, 16), dtype=torch.int32, device=device)
    result = msa_topk_select(values, 16, extents, output, 1, 2)
    assert result is output
    assert torch.equal(output, check(values, 16, extents, 1, 2))


@pytest.mark.parametrize("spec", SHARED_SPECS, ids=str)
def test_every_slot_is_written_and_no_other_word(device, spec):
    """`run_guarded` poisons the output and surrounds it; short rows leave most slots at -1."""
    topk, dtype, begin, end = spec
    gen = generator(1, device)
    for shape in [(1, 3, 1), (2, 20, 9), (3, 5, 33), (1, 3000, 5)]:
        values = draw("mostly_minus_inf", shape, dtype, gen)
        check(values, topk, None, begin, end)
        check(values, topk, torch.full((shape[2],), 2, device=device).int(), begin, end)


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
@pytest.mark.parametrize("topk", [1, 5, 16, 32, 64])
def test_output_needs_no_more_than_its_own_alignment(device, topk, offset):
    """A vector store would run over a guard word, or fault."""
    begin, end = (1, 2) if topk in (5, 32) else (0, 0)
    for shape in [(1, 40, 1), (3, 100, 5), (1, 40, 31)]:
        values = draw(MIXTURE, shape, seed=topk, device=device)
        check(values, topk, None, begin, end, offset=offset)


@pytest.mark.parametrize("before", [777, 0, -1, POISON])
def test_what_output_held_before_does_not_matter(device, before):
    values = draw("normal", (2, 30, 4), device=device)
    extents = tokens([3, 0, 30, 16], device)
    output = torch.full((4, 2, 16), before, dtype=torch.int32, device=device)
    msa_topk_select(values, 16, extents, output, 0, 1)
    assert torch.equal(output, run_guarded(values, 16, extents, 0, 1))
    assert output[0, 0].tolist() == [0, 1, 2] + [-1] * 13


def test_part_of_a_larger_buffer_may_be_output(device):
    """As serving engines do: one persistent buffer, its first rows filled at each step."""
    buffer = torch.full((20, 2, 16), POISON, dtype=torch.int32, device=device)
    for count in (20, 7, 13, 1):
        buffer.fill_(POISON)
        values = draw("normal", (2, 60, count), seed=count, device=device)
        extents = torch.full((count,), 60 - count, dtype=torch.int32, device=device)
        result = msa_topk_select(values, 16, extents, buffer[:count], LOCAL.begin, LOCAL.end)
        assert result.data_ptr() == buffer.data_ptr()
        assert torch.equal(buffer[:count], check(values, 16, extents, LOCAL.begin, LOCAL.end))
        assert buffer[count:].eq(POISON).all()


def strided_outputs(device):
    base = torch.full((2, 7, 40), POISON, dtype=torch.int32, device=device)
    return {
        "head-major": base[:, :, :16].transpose(0, 1),
        "padded rows": torch.full((7, 2, 20), POISON, dtype=torch.int32, device=device)[..., :16],
        "slot-major": torch.full((16, 7, 2), POISON, dtype=torch.int32,
                                 device=device).permute(1, 2, 0),
        "every other token": torch.full((14, 2, 16), POISON, dtype=torch.int32,
                                        device=device)[::2],
    }  # fmt: skip


@pytest.mark.parametrize("which", strided_outputs("cpu"))
def test_strided_output_is_written_through_its_strides_or_refused(device, which):
    """Never into a copy, and never as if it were contiguous."""
    values = draw("normal", (2, 60, 7), device=device)
    output = strided_outputs(device)[which]
    try:
        result = msa_topk_select(values, 16, output=output)
    except ValueError:
        assert output.eq(POISON).all()
        return
    assert result is output
    assert torch.equal(output, check(values, 16))


def test_inputs_are_left_as_they_were(device):
    values = draw("any_bits", (3, 70, 19), device=device)
    extents = tokens(range(-5, 14), device)
    before = values.view(torch.int32).clone(), extents.clone()
    msa_topk_select(values, 16, extents)
    assert torch.equal(values.view(torch.int32), before[0])
    assert torch.equal(extents, before[1])


def test_output_next_to_an_input_is_not_an_overlap(device):
    """One arena holds extents, scores and output back to back."""
    heads, blocks, count = 2, 24, 4
    arena = torch.zeros(count + heads * blocks * count + count * heads * 16, dtype=torch.int32,
                        device=device)  # fmt: skip
    extents, scores, output = arena.split([count, heads * blocks * count, count * heads * 16])
    extents.copy_(tokens([3, 24, 17, 0]))
    scores = scores.view(torch.float32).view(heads, blocks, count)
    scores.copy_(draw("normal", scores.shape))
    expected = check(scores.clone(), 16, extents.clone(), 0, 1)
    msa_topk_select(scores, 16, extents, output.view(count, heads, 16), 0, 1)
    assert torch.equal(output.view(count, heads, 16), expected)
