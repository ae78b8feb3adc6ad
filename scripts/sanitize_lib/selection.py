# SPDX-License-Identifier: Apache-2.0
"""Which calls a sanitizer watches, as data: each kernel in its smallest calls, and what is rare."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from dispatch import ONE_ROW, Shape, kernel_of, kernels
from scores import BF16, F16, F32, Spec

SPECS = (Spec(16, F32, 0, 1), Spec(16, BF16, 1, 2), Spec(32, F16, 1, 0), Spec(64, F32, 0, 2))
# What fills lists, ties them, or leaves them empty; the tokens take one each in turn.
PLAIN = "normal+some_nan+one_per_group"
HOSTILE = "ascending+constant+quantised+minus_inf+staircase"
MOSTLY_EMPTY = "mostly empty"  # the extent of a few tokens at either end; the others have none

# Kernel: heads, blocks, tokens. More than a chunk where there are chunks, a checkpoint where there
# are checkpoints, and the last of what takes several tokens in part. Heads share one copy of the
# scores, and few tokens have an extent, so that there is little to watch: racecheck is slow. Lines
# that RowPerLane and RowsInSlices copy start at multiples of 16 bytes.
SMALLEST: dict[str, Shape] = {
    "RowPerBlock UpTo128": (1, 100, 5),
    "RowPerBlock UpTo256": (1, 200, 5),
    "RowPerBlock UpTo512": (1, 300, 5),
    "RowPerBlock UpTo1024": (1, 700, 5),
    "RowPerBlock UpTo2048": (1, 1100, 5),
    "RowPerBlock UpTo8192": (1, 3000, 5),
    "RowPerBlock Longer": (23, 17_000, 3),
    "RowPerBlock Longer 2": (11, 17_000, 3),
    "RowPerBlock Longer 4": (6, 33_000, 3),
    "RowPerBlock Longer 8": (1, 66_000, 3),
    "RowPerWarp UpTo128": (4, 100, 19),
    "RowPerWarp UpTo256": (4, 200, 19),
    "RowPerWarp UpTo512": (4, 400, 19),
    "RowPerWarp ManyUpTo128": (4, 100, 195),
    "RowPerWarp ManyUpTo256": (4, 200, 195),
    "RowPerWarp ManyUpTo384": (4, 300, 195),
    "RowPerWarp ManyUpTo512": (4, 400, 195),
    "RowsPerBlock UpTo2048": (4, 700, 35),
    "RowsPerBlock ManyUpTo2048": (4, 700, 131),
    "RowsPerBlock UpTo4096": (4, 2200, 35),
    "RowsPerBlock ManyUpTo4096": (4, 2200, 131),
    "RowsPerBlock UpTo8192": (31, 4200, 7),
    "RowsByHalves UpTo8192": (31, 4200, 7),
    "RowsByHalves ManyUpTo8192": (4, 4200, 136),
    "RowsPerBlock FewUpTo8192 4": (4, 4200, 27),
    "RowsByHalves UpTo8192 4": (4, 4200, 43),
    "RowsInSlices Longer": (4, 9000, 136),
    "RowsInSlices Longer 2": (4, 9000, 68),
    "RowsInSlices Longer 4": (4, 9000, 36),
    "RowsInSlices Longer 8": (4, 9000, 20),
    "RowPerQuad": (7, 180, 1827),
    "RowPerLane Lean S": (25, 640, 1016),
    "RowPerLane Wide S": (10, 704, 856),
    "RowPerLane Wider S": (4, 704, 1080),
    "RowPerLane Sixteen S": (5, 1000, 264),
    "RowPerLane Lean P": (25, 104, 1021),
    "RowPerLane Wide P": (10, 712, 857),
    "RowPerLane Wider P": (4, 712, 1085),
    "RowPerLane Sixteen P": (4, 1104, 533),
    "RowPerLane Eight P": (3, 2112, 173),
}
# As near to the bounds as can be, each head and token with scores of its own, and no alignment.
NEAREST: dict[str, Shape] = {
    "RowPerBlock UpTo128": (2, 127, 5),
    "RowPerBlock UpTo256": (2, 129, 3),
    "RowPerBlock UpTo512": (2, 257, 3),
    "RowPerBlock UpTo1024": (2, 513, 3),
    "RowPerBlock UpTo2048": (2, 1025, 3),
    "RowPerBlock UpTo8192": (1, 2049, 3),
    "RowPerBlock Longer": (23, 8193, 3),
    "RowPerBlock Longer 2": (1, 8193, 2),
    "RowPerBlock Longer 4": (1, 16_385, 2),
    "RowPerBlock Longer 8": (1, 32_769, 2),
    "RowPerWarp UpTo128": (16, 127, 4),
    "RowPerWarp UpTo256": (13, 129, 5),
    "RowPerWarp UpTo512": (16, 257, 4),
    "RowPerWarp ManyUpTo128": (110, 33, 7),
    "RowPerWarp ManyUpTo256": (86, 129, 9),
    "RowPerWarp ManyUpTo384": (192, 257, 4),
    "RowPerWarp ManyUpTo512": (154, 385, 5),
    "RowsPerBlock UpTo2048": (33, 513, 4),
    "RowsPerBlock ManyUpTo2048": (129, 513, 4),
    "RowsPerBlock UpTo4096": (33, 2049, 4),
    "RowsPerBlock ManyUpTo4096": (129, 2049, 4),
    "RowsPerBlock UpTo8192": (33, 4097, 4),
    "RowsByHalves UpTo8192": (33, 4097, 4),
    "RowsByHalves ManyUpTo8192": (129, 4097, 4),
    "RowsPerBlock FewUpTo8192 4": (1, 4097, 25),
    "RowsByHalves UpTo8192 4": (1, 4097, 121),
    "RowsInSlices Longer": (67, 8193, 4),
    "RowsInSlices Longer 2": (31, 8193, 4),
    "RowsInSlices Longer 4": (17, 8193, 4),
    "RowsInSlices Longer 8": (13, 8193, 5),
    "RowPerQuad": (103, 33, 55),
    "RowPerLane Lean S": (820, 257, 9),
    "RowPerLane Wide S": (266, 385, 12),
    "RowPerLane Wider S": (133, 513, 8),
    "RowPerLane Sixteen S": (1, 513, 1057),
    "RowPerLane Lean P": (820, 41, 5),
    "RowPerLane Wide P": (266, 129, 17),
    "RowPerLane Wider P": (133, 129, 31),
    "RowPerLane Sixteen P": (1, 1025, 2113),
    "RowPerLane Eight P": (1, 2049, 512),
}


class Call(NamedTuple):
    """One call of the op."""

    spec: Spec
    shape: Shape
    layout: str
    extent: str
    kinds: str
    offset: int  # elements by which every tensor is moved off its alignment
    seed: int

    @property
    def kernel(self) -> str:
        """Which kernel serves it."""
        return kernel_of(self.spec.topk, self.shape, self.layout)

    @property
    def form(self) -> str:
        """The form of the extent that its build is for."""
        return "uniform" if self.extent in ("none", "int") else "token"

    def __str__(self) -> str:
        return f"{self.kernel}: {self.shape} {self.layout}+{self.offset} {self.extent} {self.spec}"


def race_calls(quick: bool) -> Iterator[Call]:
    """Yield two calls a kernel: one of plain scores, one of hostile ones that is not aligned."""
    seeds = itertools.count(1)
    for spec in SPECS[:1] if quick else SPECS:
        for kernel in kernels(spec.topk):
            layout = f"{_order(kernel)}_expanded_heads"
            for kinds, offset in ((PLAIN, 0), (HOSTILE, 1)):
                shape = SMALLEST[kernel]
                yield Call(spec, shape, layout, MOSTLY_EMPTY, kinds, offset, next(seeds))


def all_calls(quick: bool) -> Iterator[Call]:
    """Yield what `race_calls` does, and calls round the bounds, of either form of the extent."""
    seeds = itertools.count(1000)
    for call in race_calls(quick):
        yield call
        extent = ("none", "int")[call.seed // 2 % 2]
        yield call._replace(extent=extent, seed=next(seeds))
    for spec in SPECS[:1] if quick else SPECS:
        for kernel in kernels(spec.topk):
            orders = "sp" if kernel in ONE_ROW else _order(kernel)
            for order, form in itertools.product(orders, ("random", "wild", "none")):
                seed = next(seeds)
                layout = f"{order}_{'padded' if seed % 2 else 'contiguous'}"
                kinds = HOSTILE if seed % 3 else PLAIN
                yield Call(spec, NEAREST[kernel], layout, form, kinds, seed % 4, seed)


def _order(kernel: str) -> str:
    return "p" if kernel.endswith(" P") else "s"
