# SPDX-License-Identifier: Apache-2.0
"""Plain torch: the proxy pass that scores blocks, block-sparse attention, dense attention."""

from __future__ import annotations

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from demo_lib.workload import BLOCK, HEAD_SIZE, HEADS, Request, Workload

_SCORE_ELEMENTS = 1 << 25  # logits held at once by the proxy pass: 128 MiB
_GATHER_ELEMENTS = 1 << 26  # keys gathered at once by sparse attention: 128 MiB


def proxy_scores(workload: Workload) -> torch.Tensor:
    """Return the largest logit in each block, ``(H, P, S)``; ``-inf`` where nothing is visible."""
    blocks = max(request.blocks for request in workload.requests)
    extents = workload.extents
    scores = extents.new_full((HEADS, blocks, len(extents)), -torch.inf, dtype=torch.float32)
    for request, rows in workload.slices():
        _score_request(request, scores[..., rows])
    return scores


def _score_request(request: Request, scores: torch.Tensor) -> None:
    context, tokens = request.keys.shape[1], len(request.queries)
    queries = request.queries.transpose(0, 1).float()  # (H, Q, D)
    step = max(_SCORE_ELEMENTS // (HEADS * tokens * BLOCK), 1)
    for first in range(0, request.blocks, step):
        last = min(first + step, request.blocks)
        start, stop = first * BLOCK, min(last * BLOCK, context)
        logits = queries @ request.keys[:, start:stop].float().transpose(1, 2) * HEAD_SIZE**-0.5
        if stop > context - tokens:  # only here are there keys above the causal limit
            key = torch.arange(start, stop, device=logits.device)
            logits.masked_fill_(key > request.positions[:, None], -torch.inf)
        logits = pad(logits, (0, (last - first) * BLOCK - (stop - start)), value=-torch.inf)
        best = logits.view(HEADS, tokens, last - first, BLOCK).amax(-1)
        scores[:, first:last] = best.transpose(1, 2)


def sparse_attention(workload: Workload, chosen: torch.Tensor) -> torch.Tensor:
    """Attend to the chosen blocks alone: ``(S, H, D)`` from ids ``(S, H, topk)``."""
    parts = [_sparse_request(request, chosen[rows]) for request, rows in workload.slices()]
    return torch.cat(parts)


def _sparse_request(request: Request, chosen: torch.Tensor) -> torch.Tensor:
    head = torch.arange(HEADS, device=chosen.device)[:, None, None]
    keys_a_row = chosen.shape[-1] * BLOCK
    step = max(_GATHER_ELEMENTS // (HEADS * keys_a_row * HEAD_SIZE), 1)
    outputs = []
    for first in range(0, len(chosen), step):
        ids = chosen[first : first + step].long()
        offset = torch.arange(BLOCK, device=ids.device)
        key = (ids.unsqueeze(-1) * BLOCK + offset).flatten(2)  # (q, H, topk * BLOCK)
        position = request.positions[first : first + step].view(-1, 1, 1)
        visible = (key >= 0) & (key <= position)
        key = key.clamp(0, request.keys.shape[1] - 1)
        query = request.queries[first : first + step].unsqueeze(2)
        outputs.append(
            scaled_dot_product_attention(
                query,
                request.keys[head.squeeze(-1), key],
                request.values[head.squeeze(-1), key],
                attn_mask=visible.unsqueeze(2),
            ).squeeze(2)
        )
    return torch.cat(outputs)


def dense_attention(workload: Workload) -> torch.Tensor:
    """Attend to every key below the causal limit: ``(S, H, D)``."""
    return torch.cat([_dense_request(request) for request, _ in workload.slices()])


def _dense_request(request: Request) -> torch.Tensor:
    mask = None
    if len(request.queries) > 1:
        key = torch.arange(request.keys.shape[1], device=request.keys.device)
        mask = (key <= request.positions[:, None])[None, None]
    query = request.queries.transpose(0, 1)
    output = scaled_dot_product_attention(
        query[None], request.keys[None], request.values[None], attn_mask=mask
    )
    return output[0].transpose(0, 1)
