# SPDX-License-Identifier: Apache-2.0
"""Two oracles that share nothing with the torch reference: they read raw bits, never floats.

``count_row`` is the contract word for word, for one short row. ``select`` answers whole tensors:
score and id make one integer, so that no two blocks are equal and no sort has to be stable.
"""

from __future__ import annotations

import numpy as np
import torch

# Bits of +inf; everything above it, sign aside, is NaN.
INF_BITS = {torch.float32: 0x7F800000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}


def keys_of(scores: torch.Tensor) -> np.ndarray:
    """Return int64 keys of the shape of `scores` in the contract's order; +-0 share the key 0."""
    inf = INF_BITS[scores.dtype]
    width = scores.element_size() * 8
    integer = torch.int32 if width == 32 else torch.int16
    bits = scores.detach().contiguous().view(integer).cpu().numpy().astype(np.int64)
    magnitude = bits & ((1 << (width - 1)) - 1)
    key = np.where(bits < 0, -magnitude, magnitude)
    return np.where(magnitude > inf, inf, key)


def count_row(
    keys: list[int], minus_inf: int, topk: int, extent: int, begin: int, end: int
) -> list[int]:
    """Choose the blocks of one row by counting, for each of them, the blocks that beat it."""
    n = max(0, min(extent, len(keys)))
    begin = min(begin, n)
    end = min(end, n - begin)
    chosen = [*range(begin), *range(n - end, n)]
    middle = [i for i in range(begin, n - end) if keys[i] != minus_inf]
    for i in middle:
        better = sum(keys[j] > keys[i] or (keys[j] == keys[i] and j < i) for j in middle)
        if better < topk - begin - end:
            chosen.append(i)
    return sorted(chosen) + [-1] * (topk - len(chosen))


def count(scores: torch.Tensor, topk: int, extent=None, begin: int = 0, end: int = 0):
    """Return the ``(S, H, topk)`` selection by ``count_row``: for small tensors."""
    heads, _, tokens = scores.shape
    keys = keys_of(scores)
    minus_inf = -INF_BITS[scores.dtype]
    extents = _extents(scores, extent).tolist()
    rows = [
        count_row(keys[h, :, s].tolist(), minus_inf, topk, extents[s], begin, end)
        for s in range(tokens)
        for h in range(heads)
    ]
    return torch.tensor(rows, dtype=torch.int32).reshape(tokens, heads, topk)


def select(scores: torch.Tensor, topk: int, extent=None, begin: int = 0, end: int = 0):
    """Return the ``(S, H, topk)`` selection of a tensor of any size, on the CPU."""
    heads, blocks, tokens = scores.shape
    keys = keys_of(scores).transpose(2, 0, 1)  # (S, H, P)
    n = np.clip(_extents(scores, extent), 0, blocks).reshape(-1, 1, 1)
    first = np.minimum(begin, n)
    last = n - np.minimum(end, n - first)
    ids = np.arange(blocks)
    middle = (ids >= first) & (ids < last) & (keys != -INF_BITS[scores.dtype])
    forced = (ids < first) | ((ids >= last) & (ids < n))

    # A forced block outranks every score; a block that may not be chosen ranks below them all.
    rank = np.where(middle, (keys << 25) | ((1 << 25) - 1 - ids), -1 << 62)
    rank = np.where(forced, (1 << 62) - ids, rank)
    keep = min(topk, blocks)
    if 0 < keep < blocks:
        best = np.argpartition(rank, blocks - keep, axis=-1)[..., blocks - keep :]
    else:
        best = np.broadcast_to(ids, rank.shape)[..., :keep]
    valid = np.take_along_axis(rank, best, -1) > -1 << 62
    chosen = np.sort(np.where(valid, best, blocks), axis=-1)
    output = np.full((tokens, heads, topk), -1, np.int32)
    output[..., :keep] = np.where(chosen < blocks, chosen, -1)
    return torch.from_numpy(output)


def _extents(scores: torch.Tensor, extent) -> np.ndarray:
    tokens = scores.shape[2]
    if extent is None:
        extent = scores.shape[1]
    if isinstance(extent, torch.Tensor):
        return extent.cpu().numpy().astype(np.int64)
    return np.full(tokens, extent, np.int64)
