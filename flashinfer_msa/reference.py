# SPDX-License-Identifier: Apache-2.0
"""The contract in plain torch: the oracle of every test, and the op itself for CPU tensors."""

import torch


def msa_topk_select_reference(
    max_score: torch.Tensor,
    topk: int,
    num_valid_pages: int | torch.Tensor | None = None,
    force_begin_blocks: int = 0,
    force_end_blocks: int = 0,
) -> torch.Tensor:
    """Select blocks as :func:`flashinfer_msa.msa_ops.msa_topk_select` does, by sorting.

    Parameters
    ----------
    max_score : torch.Tensor
        ``(H, P, S)`` scores of any floating dtype, on any device.
    topk : int
        Blocks a row.
    num_valid_pages : int, torch.Tensor or None
        Extent of every row, or of each token (``(S,)``); ``None`` means ``P``.
    force_begin_blocks, force_end_blocks : int
        Blocks at either end of the extent that are chosen whatever their score.

    Returns
    -------
    torch.Tensor
        ``(S, H, topk)`` int32, ascending ids, then ``-1``.
    """
    heads, blocks, tokens = max_score.shape
    device = max_score.device
    score = max_score.permute(2, 0, 1).double()  # (S, H, P): exact for every supported dtype
    score = torch.where(score.isnan(), torch.inf, score) + 0.0  # NaN is +inf, -0.0 is +0.0

    extent = blocks if num_valid_pages is None else num_valid_pages
    n = torch.as_tensor(extent, device=device).expand(tokens).clamp(0, blocks).view(-1, 1, 1)
    begin = n.clamp(max=force_begin_blocks)
    end = torch.minimum(n - begin, n.new_tensor(force_end_blocks))

    block = torch.arange(blocks, device=device)
    forced = (block < begin) | ((block >= n - end) & (block < n))
    middle = (block < n) & ~forced & (score > -torch.inf)

    # A stable sort keeps lower ids first among equal scores; blocks outside the middle go last.
    score = torch.where(middle, score, -torch.inf)
    order = score.sort(dim=-1, descending=True, stable=True).indices
    order = torch.where(middle.gather(-1, order), order, blocks)[..., :topk]
    wanted = torch.arange(order.shape[-1], device=device) < topk - begin - end
    chosen = torch.zeros(tokens, heads, blocks + 1, dtype=torch.bool, device=device)
    chosen.scatter_(-1, torch.where(wanted, order, blocks), True)
    chosen = chosen[..., :blocks] | forced

    ids = torch.where(chosen, block, blocks).sort(-1).values[..., :topk]
    output = torch.full((tokens, heads, topk), -1, dtype=torch.int32, device=device)
    output[..., : ids.shape[-1]] = torch.where(ids < blocks, ids, -1)
    return output
