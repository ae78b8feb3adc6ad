# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a call: the dispatch of topk_select.cuh, few_rows.cuh and many_rows.cuh.

Written down a second time, so that tests and scripts know where to look without a GPU;
test_dispatch.py compares it with the headers.
"""

from __future__ import annotations

from collections.abc import Iterator

from layouts import LAYOUTS

Shape = tuple[int, int, int]  # heads, blocks, tokens

ONE_ROW = tuple(f"RowPerBlock {size}" for size in ("Warp", "Small", "Medium", "Large", "Long"))
SOME_ROWS = (
    *(f"RowsPerBlock {size}" for size in ("Small", "SmallMany", "Medium", "MediumMany", "Large")),
    "RowsInSlices LongMany",
)
# A lane a row has kernels of its own for each order of memory: S, tokens together; P, blocks.
MANY_ROWS = ("RowPerQuad", *(
    f"RowPerLane {size} {order}" for order in "SP" for size in ("Lean", "Wide", "Wider")
))  # fmt: skip
WIDEST_MANY_ROWS = 32  # topk
NARROW = 16  # the most for which Wider is not Wide

# The first number on the far side of every bound. Of blocks: 129, 513, 2,049 and 8,193 are more
# than the registers of a kernel for few rows hold, or the first that have another bound of rows;
# 257 is the first of which fewer rows are taken together; RowPerQuad ends before 193, or 129.
BLOCK_BOUNDS = (129, 193, 257, 513, 2049, 8193)
WARP_BOUNDS = (265, 400, 800)  # of 32 rows of a head; then RowPerLane is Wide, Lean; a quad is not
FIRST_ROWS = tuple(32 * (warps - 1) + 1 for warps in WARP_BOUNDS)  # of one head, that take so many
ROW_BOUNDS = (128, 256, 512, 2048, 4096, 5120, FIRST_ROWS[0])
TOKEN_BOUND = 4  # from which tokens share a thread block


def kernel_of(topk: int, shape: Shape, layout: str = "s_contiguous") -> str:
    """Return which kernel serves scores of a shape, in one of the `LAYOUTS`."""
    return kernel_of_strides(topk, shape, LAYOUTS[layout](*shape))


def kernel_of_strides(topk: int, shape: Shape, strides: tuple[int, int, int]) -> str:
    """Return which kernel serves scores of a shape and strides."""
    heads, blocks, tokens = shape
    rows = heads * tokens
    together = strides[2] == 1  # the tokens
    steps_far = strides[1] > 2**31 - 1
    warps = heads * -(-tokens // 32)
    bound = 4096
    if together and not steps_far:
        bound = 2048 if blocks <= 128 else 5120 if blocks <= 512 else 4096
    if topk <= WIDEST_MANY_ROWS and rows >= bound:
        if together and blocks <= (192 if warps < WARP_BOUNDS[2] else 128) and not steps_far:
            return "RowPerQuad"
        widest = "Wider" if topk <= NARROW else "Wide"
        size = "Lean" if warps >= WARP_BOUNDS[1] else "Wide" if warps >= WARP_BOUNDS[0] else widest
        return f"RowPerLane {size} {'S' if together else 'P'}"
    if together and tokens >= TOKEN_BOUND and not steps_far and blocks > 128:
        many = "Many" if rows >= 512 else ""
        if blocks <= 512 and rows >= (256 if blocks > 256 else 512):
            return f"RowsPerBlock Small{many}"
        if 512 < blocks <= 2048 and rows >= 128:
            return f"RowsPerBlock Medium{many}"
        if blocks > 2048 and rows >= 128:
            is_large = blocks <= 8192 and not many
            return "RowsPerBlock Large" if is_large else "RowsInSlices LongMany"
    sizes = {"Warp": 128, "Small": 512, "Medium": 2048, "Large": 8192}
    size = next((size for size, most in sizes.items() if blocks <= most), "Long")
    return f"RowPerBlock {size}"


def kernels(topk: int) -> tuple[str, ...]:
    """Return all kernels of a build."""
    many = [kernel for kernel in MANY_ROWS if topk <= NARROW or "Wider" not in kernel]
    return (*ONE_ROW, *SOME_ROWS, *(many if topk <= WIDEST_MANY_ROWS else ()))


def family_of(kernel: str) -> str:
    """Return the first word of a kernel's name."""
    return kernel.split()[0]


def around(bound: int) -> tuple[int, int, int]:
    """Return a bound's last number on this side, its first on the far side, and the next."""
    return bound - 1, bound, bound + 1


def heads_and_tokens(rows: int) -> list[tuple[int, int]]:
    """Return ways to have so many rows: one head, then as few heads as divide it, if any."""
    several = (h for h in range(2, 32) if rows % h == 0 and rows // h >= TOKEN_BOUND)
    ways = [(1, rows), *((h, rows // h) for h in several)]
    return ways[:2]


def row_bounds(topk: int, blocks: int, layout: str) -> list[int]:
    """Return the numbers of rows at which another kernel takes over."""
    return [
        rows
        for rows in ROW_BOUNDS
        if kernel_of(topk, (1, blocks, rows), layout)
        != kernel_of(topk, (1, blocks, rows - 1), layout)
    ]


def shapes_round_bounds(topk: int, bound: int, layout: str) -> Iterator[Shape]:
    """Yield shapes round a bound of blocks, each with rows round every bound of rows there."""
    some_blocks = (bound - 2, *around(bound))
    bounds = {rows for blocks in some_blocks for rows in row_bounds(topk, blocks, layout)}
    counts = sorted({count for rows in bounds for count in around(rows)})
    for blocks in some_blocks:
        yield from ((heads, blocks, tokens) for heads, tokens in ((1, 1), (3, 7)))
        for count in counts:
            yield from ((heads, blocks, tokens) for heads, tokens in heads_and_tokens(count))


def shapes_round_few_tokens(topk: int) -> Iterator[Shape]:
    """Yield shapes round the bound from which tokens share a thread block, of rows enough."""
    for blocks in (128, 129, 513, 2049, 8193):
        for least in row_bounds(topk, blocks, "s_contiguous"):
            if least <= 512 or blocks <= 513:
                for tokens in (1, *around(TOKEN_BOUND), 7, 8, 9):
                    yield -(-least // tokens), blocks, tokens


def shapes_round_many_warps() -> Iterator[Shape]:
    """Yield shapes round the bounds of warps that RowPerLane or RowPerQuad would take."""
    for bound, first in zip(WARP_BOUNDS, FIRST_ROWS, strict=True):
        for blocks in (128, 129, 192, 193) if bound == WARP_BOUNDS[2] else (100, 128, 193, 700):
            enough = -(-5200 // bound)  # tokens, for RowPerLane to be asked
            yield from ((heads, blocks, enough) for heads in around(bound))
            yield from (((bound + 1) // 2, blocks, tokens) for tokens in (32, 33))
            if blocks < 200:
                yield from ((1, blocks, tokens) for tokens in (first - 1, first))
