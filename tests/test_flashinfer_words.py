# SPDX-License-Identifier: Apache-2.0
"""What callers of FlashInfer's op rely on, so that the import line is all they change."""

import inspect

import pytest
import torch
from guards import check
from scores import LOCAL, PLAIN, SINK_LOCAL, draw, generator, tokens

from flashinfer_msa import msa_ops
from flashinfer_msa.msa_ops import msa_topk_select


def distinct(heads, blocks, count, device):
    """Scores without ties: the answer is the same set in every implementation."""
    flat = torch.randperm(heads * blocks * count, generator=generator(blocks))
    return flat.float().view(heads, blocks, count).to(device)


def test_signature_is_flashinfers():
    parameters = inspect.signature(msa_topk_select).parameters
    assert list(parameters) == [
        "max_score", "topk", "num_valid_pages", "output", "force_begin_blocks", "force_end_blocks",
    ]  # fmt: skip
    assert [p.default for p in parameters.values()][2:] == [None, None, 0, 0]
    assert "msa_topk_select" in msa_ops.__all__


@pytest.mark.parametrize("blocks", [24, 160, 4200])
@pytest.mark.parametrize("spec", [PLAIN, LOCAL, SINK_LOCAL], ids=str)
def test_scalar_and_token_extents_agree_on_distinct_scores(device, spec, blocks):
    topk, _, begin, end = spec
    values = distinct(2, blocks, 12, device)
    extents = torch.randint(max(begin + end, 1), blocks + 1, (12,), generator=generator(1)).int()
    together = msa_topk_select(values, topk, extents.to(device), None, begin, end)
    for s, n in enumerate(extents.tolist()):
        alone = msa_topk_select(values[..., s : s + 1].contiguous(), topk, n, None, begin, end)
        assert torch.equal(together[s], alone[0])


@pytest.mark.parametrize("blocks", [24, 160])
def test_rows_are_as_full_as_their_extent(device, blocks):
    extents = torch.randint(1, blocks + 1, (64,), generator=generator(2)).int()
    output = check(distinct(2, blocks, 64, device), 16, extents.to(device), 1, 2)
    kept = output.ge(0).sum(-1).cpu()
    assert torch.equal(kept, extents.clamp(max=16).view(-1, 1).expand(-1, 2).long())


def test_scalar_extent_with_the_worst_scores_at_both_ends(device):
    """A short scalar extent, `-inf` past it, and forced blocks that score worst of all."""
    blocks, n, begin, end = 160, 104, 1, 2
    values = draw("normal", (2, blocks, 64), device=device)
    values[:, n:] = float("-inf")
    values[:, :begin] = -1e10
    values[:, n - end : n] = -1e10
    output = check(values, 16, n, begin, end)
    assert output.lt(n).all()
    assert output[..., 0].eq(0).all()
    assert output[..., -1].eq(n - 1).all()


def test_scores_that_are_all_minus_inf_past_the_causal_limit(device):
    """The scorer writes -inf above each token's causal limit: shorter rows end in -1."""
    values = draw("normal", (4, 64, 64), device=device)
    block, token = torch.arange(64, device=device).view(-1, 1), torch.arange(64, device=device)
    values.masked_fill_(block > token, float("-inf"))
    kept = check(values, 16).ge(0).sum(-1)
    assert torch.equal(kept, (token + 1).clamp(max=16).view(-1, 1).expand(-1, 4))


@pytest.mark.parametrize(("extents", "words"), [
    (lambda n: torch.ones(n, dtype=torch.int64), "1D int32"),
    (lambda n: torch.ones(n, 1, dtype=torch.int32), "1D int32"),
    (lambda n: torch.ones(n + 1, dtype=torch.int32), "total_qo_len"),
], ids=["int64", "rank 2", "too long"])  # fmt: skip
def test_messages_keep_the_words(device, extents, words):
    values = draw("normal", (2, 32, 4), device=device)
    with pytest.raises(ValueError, match=words):
        msa_topk_select(values, 16, num_valid_pages=extents(4).to(device))


def test_a_scalar_extent_below_the_forced_sum_raises_and_a_token_one_does_not(device):
    values = draw("normal", (1, 32, 2), device=device)
    with pytest.raises(ValueError, match="num_valid_pages"):
        msa_topk_select(values, 16, 2, None, 1, 2)
    output = check(values, 16, tokens([2, 1], device), 1, 2)
    assert output[:, 0, :3].tolist() == [[0, 1, -1], [0, -1, -1]]
