# SPDX-License-Identifier: Apache-2.0
"""Properties of every call, on examples that hypothesis draws and shrinks."""

import oracle
import torch
from guards import LAYOUTS, assert_exact, check, run_guarded
from hypothesis import given
from hypothesis import strategies as st
from scores import (
    BF16,
    F16,
    F32,
    INF,
    KINDS,
    PLAIN,
    SHARED_SPECS,
    TOKEN_EXTENTS,
    UNIFORM_EXTENTS,
    Spec,
    draw,
    draw_extent,
    from_bits,
)  # fmt: skip

from flashinfer_msa.msa_ops import msa_topk_select

SEEDS = st.integers(0, 2**31)
# Sizes where a kernel's tiles, warps and thread blocks begin and end, and anything between.
SIZES = st.one_of(
    st.integers(1, 40), st.integers(0, 9).map(lambda j: 2**j), st.integers(1, 700)
)  # fmt: skip


@st.composite
def any_spec(draw_):
    topk = draw_(st.integers(1, 64))
    begin = draw_(st.integers(0, topk))
    end = draw_(st.integers(0, topk - begin))
    return Spec(topk, draw_(st.sampled_from([F32, F16, BF16])), begin, end)


def specs(device):
    """Anything on the CPU; on a GPU those that are built anyway."""
    shared = st.sampled_from(SHARED_SPECS)
    return shared if device.type == "cuda" else st.one_of(shared, any_spec())


@given(data=st.data())
def test_any_call_gives_the_true_selection(device, data):
    spec = data.draw(specs(device))
    heads, blocks, count = data.draw(st.integers(1, 9)), data.draw(SIZES), data.draw(SIZES)
    count = min(count, 20_000 // (heads * blocks) + 1)
    seed = data.draw(SEEDS)
    kind = "+".join(data.draw(st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=4)))
    values = draw(kind, (heads, blocks, count), spec.dtype, seed, device)
    form = data.draw(st.sampled_from([*TOKEN_EXTENTS, *UNIFORM_EXTENTS]))
    extent = draw_extent(form, blocks, count, spec.begin + spec.end, seed, device)
    layout, offset = data.draw(st.sampled_from([*LAYOUTS])), data.draw(st.integers(0, 9))
    check(values, spec.topk, extent, spec.begin, spec.end, layout=layout, offset=offset)


@given(
    row=st.lists(st.floats(width=32), min_size=1, max_size=40),
    spec=any_spec(),
    extent=st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 45),
)
def test_any_row_of_floats_agrees_with_counting(row, spec, extent):
    values = torch.tensor(row, dtype=F32).view(1, -1, 1)
    extents = torch.tensor([extent], dtype=torch.int32)
    rest = (spec.topk, extents, spec.begin, spec.end)
    assert_exact(run_guarded(values, *rest), oracle.count(values, *rest), values, extents)


@given(data=st.data())
def test_any_row_of_bits_agrees_with_counting(device, data):
    """Few distinct patterns, so that ties, NaN payloads and neighbours in bits all meet."""
    pool = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6))
    pool += [(bits + 1) % 2**32 for bits in pool]
    row = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=60))
    values = from_bits(row).view(1, -1, 1)
    output = run_guarded(values.to(device), PLAIN.topk)
    assert_exact(output, oracle.count(values, PLAIN.topk), values)


def drawn(data, device, kinds=("quantised", "normal", "specials", "some_nan", "zeros")):
    shape = (data.draw(st.integers(1, 3)), data.draw(SIZES), data.draw(st.integers(1, 9)))
    kind = data.draw(st.sampled_from(kinds))
    return draw(kind, shape, F32, data.draw(SEEDS), device)


@given(data=st.data())
def test_raising_the_chosen_blocks_changes_nothing(device, data):
    values = drawn(data, device)
    chosen = msa_topk_select(values, 16)
    raised = torch.cat([values, values[:, :1]], dim=1)  # one more block takes the -1 slots
    target = torch.where(chosen < 0, values.shape[1], chosen).long().permute(1, 2, 0)
    raised.scatter_(1, target, INF)
    raised = raised[:, :-1].contiguous()
    assert torch.equal(msa_topk_select(raised, 16), chosen)


@given(data=st.data())
def test_doubling_every_score_changes_nothing(device, data):
    """Exact in binary, so order and ties are the same."""
    values = drawn(data, device)
    assert torch.equal(msa_topk_select(values * 2, 16), msa_topk_select(values, 16))


@given(data=st.data())
def test_blocks_of_minus_inf_at_the_end_change_nothing(device, data):
    values = drawn(data, device)
    more = data.draw(st.integers(1, 300))
    padding = torch.full((values.shape[0], more, values.shape[2]), -INF, device=device)
    longer = torch.cat([values, padding], dim=1)
    assert torch.equal(msa_topk_select(longer, 16), msa_topk_select(values, 16))


@given(data=st.data())
def test_dropping_a_block_that_was_not_chosen_changes_nothing(device, data):
    values = drawn(data, device)[:1, :, :1]
    chosen = msa_topk_select(values, 16).flatten().tolist()
    left = sorted({*range(values.shape[1])} - {*chosen})
    if left:
        drop = data.draw(st.sampled_from(left))
        rest = torch.cat([values[:, :drop], values[:, drop + 1 :]], dim=1)
        expected = [i - (i > drop) for i in chosen]
        assert msa_topk_select(rest, 16).flatten().tolist() == expected


@given(data=st.data())
def test_permuting_heads_and_tokens_permutes_the_rows(device, data):
    values = drawn(data, device)
    heads, tokens = (
        torch.tensor(data.draw(st.permutations(range(n))), device=device)
        for n in (values.shape[0], values.shape[2])
    )
    shuffled = msa_topk_select(values[heads][..., tokens].contiguous(), 16)
    assert torch.equal(shuffled, msa_topk_select(values, 16)[tokens][:, heads])
