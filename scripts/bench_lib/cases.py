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
    # none, int, token; short: token extents of 64 in a wide allocation; mixed: of all lengths
    extent: str = "token"
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


def bounds() -> list[Case]:
    """Return the last case before each bound of the dispatch, and the first behind it."""
    blocks = {  # tokens, of 4 heads: the blocks before a bound
        1: (128, 256, 512, 1024, 2048, 8192, 16_384, 32_768),
        64: (128, 256, 512, 2048, 4096, 8192),
        256: (128, 256, 384, 512, 2048, 4096),
        1024: (384,),
        2048: (128,),
        4096: (256,),
    }
    rows = {  # blocks: the first tokens of 4 heads behind a bound
        128: (16, 192, 1408),
        200: (3169, 5569),  # of warps
        256: (16, 192, 1792),
        384: (192, 1792),
        512: (16, 192, 768),
        600: (32, 128),
        2048: (32, 128, 576),
        4096: (32, 128),
        8192: (29, 49, 96),
    }
    # The same of one head; all but the first have an odd number of rows before or behind them.
    alone = {8192: (24, 193), 1024: (1057,), 9000: (65, 121, 241, 529), 40_000: (16, 31)}
    for_p = {128: (1024,), 2048: (448,), 8192: (128,)}  # where blocks lie together
    pairs = [(p + more, s) for s, ends in blocks.items() for p in ends for more in (0, 1)]
    pairs += [(p, s - less) for p, starts in rows.items() for s in starts for less in (1, 0)]
    cases = [Case("prefill" if s >= 512 else "decode", 4, p, s) for p, s in pairs]
    starts = [(p, s - less) for p, behind in alone.items() for s in behind for less in (1, 0)]
    cases += [Case("decode", 1, p, s) for p, s in starts]
    cases += [Case("decode", 1, 9000, s, order="P") for s in (66, 67)]
    ends = [(p + more, 64) for p in (512, 2048, 8192) for more in (0, 1)]
    ends += [(p, s - less) for p, starts in for_p.items() for s in starts for less in (1, 0)]
    cases += [Case("prefill" if s >= 512 else "decode", 4, p, s, order="P") for p, s in ends]
    one_head = [Case("prefill", 1, 2048, n) for n in (4225, 8449, 12_769)]  # of warps
    one_head += [replace(case, tokens=case.tokens - 1) for case in one_head]
    cases += [Case("prefill", 1, 2048, n, order="P") for n in (2112, 2113)]
    return cases + [replace(case, order=order) for case in one_head for order in "SP"]


def mixed() -> list[Case]:
    """Return a case of each regime with extents of all lengths beside each other, as servers have.

    All but the extents of each is another case.
    """
    shapes = [(128, 256), (512, 64), (512, 256), (2048, 64), (2048, 256), (4096, 256)]
    shapes += [(8192, s) for s in (1, 8, 48, 64, 256)]
    shapes += [(16_384, 16), (16_384, 256), (131_072, 1), (131_072, 16)]
    cases = [Case("decode", 4, p, s, extent="mixed") for p, s in shapes]
    shapes = [(128, 8192), (512, 8192), (1024, 2048), (2048, 8192)]
    return cases + [Case("prefill", 4, p, s, extent="mixed") for p, s in shapes]


def neighbours() -> list[Case]:
    """Return what lies round the table: other heads, lengths, layouts, types, extents, forces."""
    few, many = Case("decode", 4, 2048, 16), Case("prefill", 4, 1024, 2048)
    heads = [
        replace(case, heads=heads)
        for heads in (2, 3, 8)  # of 1, the record has some
        for case in (Case("decode", 4, 512, 8), Case("decode", 4, 8192, 32), many)
    ]
    lengths = (17, 200, 6000, 16384, 131072)
    blocks = [Case("decode", 4, p, s) for p in lengths for s in (1, 16, 256)]
    large = [Case("prefill", 4, p, s) for p, s in ((64, 4096), (512, 16384), (512, 65536))]
    large += [Case("prefill", 4, p, s) for p in (2048, 8192) for s in (512, 513)]
    large += [Case("prefill", 4, 8192, 65536), Case("decode", 4, 131072, 512)]
    regimes = [Case("decode", 4, 512, 64), few, Case("decode", 4, 8192, 64), many]
    regimes.append(Case("prefill", 4, 128, 8192))
    forms = (("S", "f16"), ("S", "bf16"), ("P", "f32"), ("P", "f16"))
    typed = [replace(case, order=order, dtype=dtype) for case in regimes for order, dtype in forms]
    ordered = [
        replace(case, order="P")
        for case in recorded()
        if case.heat == "cold" and case.heads == 4 and case.tokens in (1, 8192)
    ]
    extents = [
        replace(case, extent=extent, force=force)
        for case in (few, many)
        for extent, force in itertools.product(("none", "int", "token"), ((0, 0), (1, 2)))
    ]
    short = [
        replace(case, blocks=p, extent=extent)
        for case in (Case("decode", 4, 64, 16), Case("decode", 4, 64, 256))
        for p, extent in ((64, "token"), (8192, "short"))
    ]
    cases = (*heads, *blocks, *large, *typed, *ordered, *extents, *short, *mixed(), *bounds())
    return list(dict.fromkeys(cases))


def hostile() -> list[Case]:
    """Return, for a shape of each regime, the normal case and then the hostile ones."""
    shapes = [Case("decode", 4, p, s) for p, s in ((512, 8), (2048, 1), (8192, 64))]
    shapes += [Case("prefill", 4, p, s) for p, s in ((256, 8192), (1024, 2048), (8192, 1024))]
    return [replace(case, scores=scores) for case in shapes for scores in ("normal", *HOSTILE)]
