# SPDX-License-Identifier: Apache-2.0
"""Random shapes for the fuzzer that meet every kernel, most often in small calls."""

from __future__ import annotations

import random

from dispatch import BLOCK_BOUNDS, ROW_BOUNDS, WARP_BOUNDS, Shape

# Cases of rows, and half of them of blocks too, about where another kernel takes over.
CROWDED = 0.25
# Rows and blocks, first and last, of what such cases seldom meet: long rows, and so many of them.
RARE = (
    ((128, 600), (2049, 4100)), ((24, 100), (4097, 8192)), ((384, 520), (4090, 8200)),
    ((121, 190), (4097, 8192)), ((193, 380), (4097, 8192)),
    ((241, 528), (8193, 8800)), ((530, 540), (8193, 8800)), ((768, 900), (385, 512)),
    ((2120, 2600), (1026, 1100)),
)  # fmt: skip
FEW_TOKENS = 0.25  # of those: as many warps as the largest calls have, in small ones


def skewed(rng: random.Random, low: int, high: int) -> int:
    """Mostly small, often just beside a power of two, up to `high`."""
    top = rng.randint(0, high.bit_length())
    n = rng.choice([rng.randint(0, 1 << top), (1 << top) + rng.randint(-1, 1)])
    return min(high, max(low, n))


def random_shape(rng: random.Random, max_scores: int) -> Shape:
    """Draw a shape of at most so many scores, and of four times as many in a crowd of rows."""
    if rng.random() < CROWDED:
        return crowded_shape(rng, 4 * max_scores)
    heads = rng.randint(1, 9)
    blocks = skewed(rng, 0, rng.choice([700, 700, 20_000, 140_000]))
    most = max(1, max_scores // (heads * max(1, blocks)))
    return heads, blocks, min(skewed(rng, 1, 6000), most)


def crowded_shape(rng: random.Random, max_scores: int) -> Shape:
    """Draw rows about a bound, and as many blocks as the limit leaves."""
    if rng.random() < 0.25:
        return rare_shape(rng, max_scores)
    rows = rng.choice(ROW_BOUNDS)
    rows += rng.choice([rng.randint(-9, 9), skewed(rng, 0, rows)])
    if rng.random() < FEW_TOKENS:
        tokens = rng.randint(3, 6)
        warps = rng.choice(WARP_BOUNDS) + rng.randint(-1, 9)
        heads = max(-(-rows // tokens), rng.choice([1, warps]))
    else:
        heads = rng.randint(1, 9)
        tokens = -(-rows // heads)
    most = max(1, max_scores // (heads * tokens))
    if rng.random() < 0.5:
        near = [bound for bound in BLOCK_BOUNDS if bound <= most] or [most]
        return heads, max(0, min(most, rng.choice(near) + rng.randint(-9, 9))), tokens
    return heads, min(most, skewed(rng, 0, 20_000)), tokens


def rare_shape(rng: random.Random, max_scores: int) -> Shape:
    """Draw a shape for one of the kernels that are met least."""
    if rng.random() < 1 / (1 + len(RARE)):  # for RowPerLane, five of its lanes
        heads, tokens = WARP_BOUNDS[-1] + rng.randint(20, 40), 5
        blocks = 1536 + rng.randint(-9, 9)
    else:
        row_range, block_range = rng.choice(RARE)
        heads = rng.randint(1, 6)
        tokens = -(-rng.randint(*row_range) // heads)
        blocks = rng.randint(*block_range)
    return heads, min(blocks, max_scores // (heads * tokens)), tokens
