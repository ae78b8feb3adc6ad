# SPDX-License-Identifier: Apache-2.0
"""What is measured: the recorded table, its neighbours, and hostile scores, as data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from bench_lib import peers

BLOCK = 128
SHORT = 64  # extents of the kind `short`
ITEM_SIZE = {"f32": 4, "f16": 2, "bf16": 2}
HOSTILE = ("constant", "ascending", "descending", "ties", "groups", "inf", "alternating")


@dataclass(frozen=True)
class Case:
    """One call to time.

    ``decode``: every token sees all blocks. ``prefill``: the last tokens of a context of that many
    blocks, ``-inf`` above the causal limit.
    """

    kind: str
    heads: int
    blocks: int
    tokens: int
    heat: str = "cold"  # cold: rotate over more memory than the L2 holds; hot: one buffer
    dtype: str = "f32"
    order: str = "S"  # the axis that is contiguous in memory: S or P
    extent: str = "token"  # none, int, token, or short: token extents of 64 in a wide allocation
    force: tuple[int, int] = (0, 1)
    scores: str = "normal"
    topk: int = 16

    @property
    def bytes(self) -> int:
        """Size of the scores."""
        return self.heads * self.blocks * self.tokens * ITEM_SIZE[self.dtype]

    @property
    def key(self) -> tuple[str, int, int, int, str]:
        """What the recorded peers are filed under."""
        return self.kind, self.heads, self.blocks, self.tokens, self.heat

    @property
    def is_standard(self) -> bool:
        """Whether all but the shape is as it was when the peers were recorded."""
        return replace(self, order="S") == Case(*self.key)

    @property
    def name(self) -> str:
        """The shape, then whatever differs from the standard case."""
        standard = Case(*self.key)
        shape = f"{self.kind:7} {self.heads} x {self.blocks} x {self.tokens} {self.heat}"
        odd = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(standard, k)]
        return " ".join((shape, *odd)).replace(", ", ",")


def recorded() -> list[Case]:
    """Return the shapes that the peers were recorded on."""
    return [Case(*key) for key in peers.load()]


def neighbours() -> list[Case]:
    """Return what lies round the table: other heads, lengths, layouts, types, extents, forces."""
    few, many = Case("decode", 4, 2048, 16), Case("prefill", 4, 1024, 2048)
    heads = [
        replace(case, heads=heads)
        for heads in (1, 2, 3, 8)
        for case in (Case("decode", 4, 512, 8), few, Case("decode", 4, 8192, 32), many)
    ]
    lengths = (17, 33, 64, 100, 200, 384, 700, 1500, 3000, 6000, 16384, 32768, 65536, 131072)
    blocks = [Case("decode", 4, p, s) for p in lengths for s in (1, 16, 256)]
    small = [Case("decode", 4, p, s) for p in (64, 128, 512) for s in (2, 4, 16, 32, 128, 512)]
    large = [Case("prefill", 4, p, s) for p in (64, 128, 512) for s in (1000, 1024, 4096, 16384)]
    large += [Case("prefill", 4, 512, 65536), Case("prefill", 4, 8192, 65536)]
    grown = [Case("decode", 4, 131072, 512), Case("prefill", 4, 256, 2048), many]
    regimes = [Case("decode", 4, 512, 64), few, Case("decode", 4, 8192, 64), many]
    regimes.append(Case("prefill", 4, 128, 8192))
    typed = [
        replace(case, order=order, dtype=dtype)
        for case in regimes
        for order, dtype in itertools.product("SP", ITEM_SIZE)
    ]
    ordered = [replace(case, order="P") for case in recorded() if case.heat == "cold"]
    extents = [
        replace(case, extent=extent, force=force)
        for case in (few, many)
        for extent, force in itertools.product(("none", "int", "token"), ((0, 0), (0, 1), (1, 2)))
    ]
    short = [
        replace(case, blocks=p, extent=extent)
        for case in (Case("decode", 4, 64, 16), Case("decode", 4, 64, 256))
        for p, extent in ((64, "token"), (8192, "short"))
    ]
    cases = (*heads, *blocks, *small, *large, *grown, *typed, *ordered, *extents, *short)
    return list(dict.fromkeys(cases))


def hostile() -> list[Case]:
    """Return, for a shape of each regime, the normal case and then the hostile ones."""
    shapes = [Case("decode", 4, p, s) for p, s in ((512, 8), (2048, 1), (8192, 64))]
    shapes += [Case("prefill", 4, p, s) for p, s in ((256, 8192), (1024, 2048), (8192, 1024))]
    return [replace(case, scores=scores) for case in shapes for scores in ("normal", *HOSTILE)]
