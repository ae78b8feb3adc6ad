# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a call: the dispatch of topk_select.cuh and the three *_rows.cuh of it.

Written down a second time, so that tests and scripts know where to look without a GPU;
test_dispatch.py compares it with the headers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from layouts import LAYOUTS

Shape = tuple[int, int, int]  # heads, blocks, tokens

ENDS = (128, 256, 512, 1024, 2048, 8192)  # of blocks, for a row a thread block
# With a number at the end, so many thread blocks share a row, where the GPU can do that.
SHARES = (" 2", " 4", " 8")
ONE_ROW = (
    *(f"RowPerBlock UpTo{end}" for end in ENDS),
    *(f"RowPerBlock Longer{shares}" for shares in ("", *SHARES)),
)
SHORT_ROWS = (
    *(f"RowPerWarp UpTo{end}" for end in (128, 256, 512)),
    *(f"RowPerWarp ManyUpTo{end}" for end in (128, 256, 384, 512)),
)
LONG_ROWS = (
    *(f"RowsPerBlock {name}" for name in ("UpTo2048", "UpTo4096", "ManyUpTo2048")),
    "RowsPerBlock FewUpTo8192 4",
    *(f"RowsInSlices Longer{shares}" for shares in ("", *SHARES)),
)
# A lane a row has kernels of its own for each order of memory: S, tokens together; P, blocks.
MANY_ROWS = (
    "RowPerQuad",
    *(f"RowPerLane {size} {order}" for order in "SP" for size in ("Lean", "Wide", "Sixteen")),
)
NARROW_ONLY = (
    "RowsPerBlock ManyUpTo4096",
    "RowsByHalves ManyUpTo8192",
    "RowPerLane Wider S", "RowPerLane Wider P", "RowPerLane Eight P",
)  # fmt: skip
WIDEST_MANY_ROWS = 32  # topk
WIDEST_HALVES = 32
NARROW = 16  # topk; the most for which there are all kernels

# The first number on the far side of every bound. Of blocks: what the registers of a kernel for few
# rows hold ends before all but one of them, RowPerQuad before 129 and 257.
BLOCK_BOUNDS = (129, 257, 385, 513, 1025, 2049, 4097, 8193, 16_385, 32_769)
# Of 32 rows of a head: then RowPerLane is Sixteen (before, where blocks lie together, Eight),
# Wider, Wide, Lean; RowPerQuad takes up to 256 blocks from where it is Lean to the last of these.
WARP_BOUNDS = (67, 133, 265, 400, 700)
FIRST_ROWS = tuple(32 * (warps - 1) + 1 for warps in WARP_BOUNDS)  # of one head, that take so many
ROW_BOUNDS = (
    16, 24, 31, 64, 65, 67, 121, 128, 129, 193, 241, 384, 512, 529, 768,
    1057, 1792, 2304, 3072, 4096, 5632, 7168, *FIRST_ROWS[:4],
)  # fmt: skip
CLUSTERS = 2  # Params::kClusters of row.cuh: the GPU can let thread blocks share rows
CLUSTERS_AT_ONCE = {8: 15, 4: 30, 2: 66}  # by thread blocks of one
TOKEN_BOUND = 4  # from which tokens share a thread block
SHARED_BY_HALVES = 24  # clusters of eight rows up to which RowsByHalves shares them
MANY_BY_HALVES = 384  # rows from which RowsByHalves takes eight of them, if they are not shared
LINE_BOUND = 24  # from how many scores of a block on, in memory, rows share thread blocks earlier


def kernel_of(topk: int, shape: Shape, layout: str = "s_contiguous", clusters: bool = True) -> str:
    """Return which kernel serves scores of a shape, in one of the `LAYOUTS`."""
    return kernel_of_strides(topk, shape, LAYOUTS[layout](*shape), clusters)


def kernel_of_strides(
    topk: int,
    shape: Shape,
    strides: tuple[int, int, int],
    clusters: bool = True,
    chunk: int = 4,
) -> str:
    """Return which kernel serves scores of a shape and strides, with or without clusters.

    The first starts at a multiple of 16 bytes, which hold `chunk` scores.
    """
    heads, blocks, tokens = shape
    rows = heads * tokens
    together = strides[2] == 1  # the tokens
    steps_far = strides[1] > 2**31 - 1
    warps = heads * -(-tokens // 32)
    adjacent = together and not steps_far
    aligned = strides[0] % chunk == 0 and strides[1 if together else 2] % chunk == 0
    if topk <= WIDEST_MANY_ROWS and rows >= least_many_rows(blocks, adjacent, aligned):
        is_some = WARP_BOUNDS[3] <= warps < WARP_BOUNDS[4]
        if adjacent and blocks <= (256 if is_some else 128):
            return "RowPerQuad"
        return (
            f"RowPerLane {_size_of_lanes(topk, warps, blocks, together)} {'S' if together else 'P'}"
        )
    if adjacent and tokens >= TOKEN_BOUND:
        if blocks <= 512 and rows >= 64:
            many = "Many" if rows >= 768 else ""
            ends = (128, 256, 384, 512) if many else (128, 256, 512)
            return f"RowPerWarp {many}UpTo{next(end for end in ends if blocks <= end)}"
        if blocks > 512 and rows >= least_some_rows(blocks, strides[1], clusters):
            return _kernel_of_long_rows(topk, shape, clusters)
    if blocks > ENDS[-1]:
        most = next((n for n, end in CLUSTERS_AT_ONCE.items() if rows <= end), 1)
        wanted = 2 if blocks <= 16_384 else 4 if blocks <= 32_768 else 8
        return _shared("RowPerBlock Longer", min(most, wanted) if clusters else 1)
    return f"RowPerBlock UpTo{next(end for end in ENDS if blocks <= end)}"


def _size_of_lanes(topk: int, warps: int, blocks: int, together: bool) -> str:
    """Return the size of RowPerLane for so many warps of 32 rows."""
    eight, wider = ("Eight", "Wider") if topk <= NARROW else ("Sixteen", "Wide")
    sizes = ("Sixteen" if together else eight, "Sixteen", wider, "Wide", "Lean")
    if blocks <= 512 and warps < WARP_BOUNDS[2]:
        return wider
    return sizes[sum(warps >= bound for bound in WARP_BOUNDS[:4])]


def _kernel_of_long_rows(topk: int, shape: Shape, clusters: bool) -> str:
    """Return which kernel serves some rows of adjacent tokens, of more than 512 blocks."""
    heads, blocks, tokens = shape
    rows = heads * tokens

    def clusters_of(rows_of_one: int) -> float:
        return heads * -(-tokens // rows_of_one) if clusters else math.inf

    if blocks <= 4096:
        many = "Many" if rows >= 512 and (topk <= NARROW or blocks <= 2048) else ""
        return f"RowsPerBlock {many}UpTo{2048 if blocks <= 2048 else 4096}"
    if blocks > 8192:
        fitting = (n for n, most in CLUSTERS_AT_ONCE.items() if clusters_of(8) <= most)
        return _shared("RowsInSlices Longer", next(fitting, 1))
    if clusters_of(4) <= (CLUSTERS_AT_ONCE[4] if topk <= WIDEST_HALVES else 32):
        return "RowsPerBlock FewUpTo8192 4"
    if topk <= WIDEST_HALVES and clusters_of(8) <= SHARED_BY_HALVES:
        return "RowsByHalves UpTo8192 4"
    many = "Many" if rows >= MANY_BY_HALVES and topk <= NARROW else ""
    return f"{_family_up_to_8192(topk)} {many}UpTo8192"


def _shared(kernel: str, shares: int) -> str:
    return kernel if shares == 1 else f"{kernel} {shares}"


def least_some_rows(blocks: int, block_stride: int, clusters: bool) -> int:
    """Return from how many rows on a thread block takes several, if there are over 512 blocks."""
    if not clusters or blocks <= 4096:
        return 128
    if blocks <= 8192:
        return 24 if block_stride >= LINE_BOUND else 128
    return 31 if block_stride >= LINE_BOUND and blocks > 16_384 else 65


def least_many_rows(blocks: int, adjacent: bool, aligned: bool) -> int:
    """Return from how many rows on a lane or a quad of lanes takes one."""
    if not adjacent:
        return 4096 if blocks <= 1024 else 1792 if blocks <= 2048 else 512
    longer = 1057 if aligned or not 1024 < blocks <= 8192 else 2304
    return next((n for end, n in ((128, 5632), (384, 7168), (512, 3072)) if blocks <= end), longer)


def kernels(topk: int) -> tuple[str, ...]:
    """Return all kernels of a build."""
    names = [*ONE_ROW, *SHORT_ROWS, *LONG_ROWS, f"{_family_up_to_8192(topk)} UpTo8192"]
    names += ["RowsByHalves UpTo8192 4"] if topk <= WIDEST_HALVES else []
    names += MANY_ROWS if topk <= WIDEST_MANY_ROWS else ()
    return (*names, *(NARROW_ONLY if topk <= NARROW else ()))


def _family_up_to_8192(topk: int) -> str:
    return "RowsByHalves" if topk <= WIDEST_HALVES else "RowsPerBlock"


def family_of(kernel: str) -> str:
    """Return the first word of a kernel's name."""
    return kernel.split()[0]


def kind_of(kernel: str) -> str:
    """Return a kernel's name, one for all that share rows, however many thread blocks do."""
    return f"{kernel[:-2]} shared" if kernel.endswith(SHARES) else kernel


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
    some_blocks = (bound - 2, *around(bound)) if bound < 10_000 else (bound - 1, bound)
    bounds = {rows for blocks in some_blocks for rows in row_bounds(topk, blocks, layout)}
    if bound > 10_000:  # what so many rows take is the same as before
        bounds = {rows for rows in bounds if rows < 1000}
    counts = sorted({count for rows in bounds for count in around(rows)})
    for blocks in some_blocks:
        yield from ((heads, blocks, tokens) for heads, tokens in ((1, 1), (3, 7)))
        for count in counts:
            yield from ((heads, blocks, tokens) for heads, tokens in heads_and_tokens(count))


def shapes_round_few_tokens(topk: int) -> Iterator[Shape]:
    """Yield shapes round the bound from which tokens share a thread block, of rows enough."""
    for blocks in (128, 129, 257, 513, 2049, 4097, 8193):
        for least in row_bounds(topk, blocks, "s_contiguous"):
            if least <= 768 or blocks <= 513:
                for tokens in (1, *around(TOKEN_BOUND), 7, 8, 9):
                    yield -(-least // tokens), blocks, tokens
    # Of few tokens clusters hold few rows, and there are soon more of them than fit at once.
    for count in CLUSTERS_AT_ONCE.values():
        for blocks, tokens in ((4097, 4), (8193, 5), (8193, 9)):
            yield from ((heads, blocks, tokens) for heads in (count, count + 1))
    yield from (
        (heads, 4097, tokens) for heads in around(SHARED_BY_HALVES)[1:] for tokens in (5, 8)
    )


def shapes_round_many_warps() -> Iterator[Shape]:
    """Yield shapes round the bounds of warps that RowPerLane or RowPerQuad would take."""
    for bound, first in zip(WARP_BOUNDS, FIRST_ROWS, strict=True):
        for blocks in (100, 256, 257, 700):
            enough = -(-7200 // bound)  # tokens, for RowPerLane to be asked
            yield from ((heads, blocks, enough) for heads in around(bound))
            yield from (((bound + 1) // 2, blocks, tokens) for tokens in (32, 33))
            if blocks in (256, 257):
                yield from ((1, blocks, tokens) for tokens in (first - 1, first))
