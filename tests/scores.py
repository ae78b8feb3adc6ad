# SPDX-License-Identifier: Apache-2.0
"""Scores and extents, drawn by name from one seeded generator on any device."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch

from flashinfer_msa.spec import TopKSelectSpec

NAN, INF = float("nan"), float("inf")


class Spec(NamedTuple):
    """What a call is specialised on. On a GPU each one (and each extent form) is a build."""

    topk: int
    dtype: torch.dtype
    begin: int
    end: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"k{self.topk}-{dtype}-b{self.begin}-e{self.end}"


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPE_NAMES = {F32: "f32", F16: "f16", BF16: "bf16"}  # as `TopKSelectSpec` calls them
PLAIN = Spec(16, F32, 0, 0)
LOCAL = Spec(16, F32, 0, 1)  # MiniMax-M3: the newest block is always visible
SINK_LOCAL = Spec(16, F32, 1, 2)
SINK = Spec(16, F32, 1, 0)
HALF, BFLOAT = Spec(16, F16, 0, 1), Spec(16, BF16, 0, 1)
ONE, FIVE, WIDE, WIDEST = (
    Spec(1, F32, 0, 0), Spec(5, F32, 1, 2), Spec(32, F32, 1, 2), Spec(64, F32, 0, 0)
)  # fmt: skip
# GPU tests draw from these, so that a run builds a dozen specialisations and no more.
SHARED_SPECS = (PLAIN, LOCAL, SINK_LOCAL, SINK, HALF, BFLOAT, ONE, FIVE, WIDE, WIDEST)


def shared_builds() -> list[TopKSelectSpec]:
    """Return the builds of the shared specs, for either form of the extent."""
    return [
        TopKSelectSpec(spec.topk, DTYPE_NAMES[spec.dtype], spec.begin, spec.end, extent)
        for spec in SHARED_SPECS
        for extent in ("token", "uniform")
    ]


class Format(NamedTuple):
    integer: torch.dtype
    mantissa: int
    inf: int
    one: int
    sign: int


FORMATS = {
    F32: Format(torch.int32, 23, 0x7F800000, 0x3F800000, -(2**31)),
    F16: Format(torch.int16, 10, 0x7C00, 0x3C00, -(2**15)),
    BF16: Format(torch.int16, 7, 0x7F80, 0x3F80, -(2**15)),
}


def from_bits(bits, dtype: torch.dtype = F32) -> torch.Tensor:
    """Reinterpret integers (a tensor or nested lists, unsigned allowed) as scores."""
    integer = FORMATS[dtype].integer
    bits = torch.as_tensor(bits)
    return bits.to(integer).view(dtype) if bits.dtype != integer else bits.view(dtype)


def column(values, dtype: torch.dtype = F32, device="cpu") -> torch.Tensor:
    """Return the ``(1, P, 1)`` scores of a single row."""
    values = torch.as_tensor(values, dtype=dtype, device=device)
    return values.reshape(1, -1, 1)


def _integers(low, high, shape, dtype, gen):
    integer = FORMATS[dtype].integer
    return torch.randint(low, high, shape, generator=gen, device=gen.device, dtype=integer)


def _sign(shape, dtype, gen):
    return _integers(0, 2, shape, dtype, gen) * FORMATS[dtype].sign


def _block_ids(shape, gen):
    return torch.arange(shape[1], device=gen.device).view(1, -1, 1).expand(shape)


def normal(shape, dtype, gen):
    return torch.randn(shape, generator=gen, device=gen.device).to(dtype)


def quantised(shape, dtype, gen):
    return (torch.randn(shape, generator=gen, device=gen.device) * 4).round().div(4).to(dtype)


def constant(shape, dtype, gen):
    return torch.full(shape, 0.25, dtype=dtype, device=gen.device)


def ascending(shape, dtype, gen):
    """Neighbours differ in the last bit only, until float16 and bfloat16 run out of values."""
    f = FORMATS[dtype]
    ids = _block_ids(shape, gen).clamp(max=f.inf - f.one)
    return from_bits((ids + f.one).to(f.integer), dtype)


def descending(shape, dtype, gen):
    return ascending(shape, dtype, gen).flip(1)


def minus_inf(shape, dtype, gen):
    return torch.full(shape, -INF, dtype=dtype, device=gen.device)


def specials(shape, dtype, gen):
    table = [-INF, INF, NAN, -NAN, 0.0, 1.0, -INF, -INF]
    table = torch.tensor(table, dtype=dtype, device=gen.device)
    return table[torch.randint(0, len(table), shape, generator=gen, device=gen.device)]


def staircase(shape, dtype, gen):
    """Ties in steps that rise: each step beats all that was kept so far, and then ties."""
    return (_block_ids(shape, gen) // 37).to(dtype)


def sawtooth(shape, dtype, gen):
    """Rising runs, the same values again in each of them."""
    return (_block_ids(shape, gen) % 97).to(dtype)


def all_nan(shape, dtype, gen):
    """NaN of both signs and any payload, signalling ones included."""
    f = FORMATS[dtype]
    payload = _integers(1, 1 << f.mantissa, shape, dtype, gen)
    return from_bits(payload | f.inf | _sign(shape, dtype, gen), dtype)


def some_nan(shape, dtype, gen):
    rare = torch.randint(0, 8, shape, generator=gen, device=gen.device) == 0
    return torch.where(rare, all_nan(shape, dtype, gen), normal(shape, dtype, gen))


def subnormal(shape, dtype, gen):
    return from_bits(_integers(0, 100, shape, dtype, gen) | _sign(shape, dtype, gen), dtype)


def zeros(shape, dtype, gen):
    return from_bits(_sign(shape, dtype, gen), dtype)


def shared_high_bits(shape, dtype, gen):
    return from_bits(_integers(0, 8, shape, dtype, gen) | FORMATS[dtype].one, dtype)


def low_bits(shape, dtype, gen):
    """Every score in [1, 2): all of the order is in the mantissa."""
    f = FORMATS[dtype]
    return from_bits(_integers(0, 1 << f.mantissa, shape, dtype, gen) | f.one, dtype)


def one_per_group(shape, dtype, gen):
    """One high block in each run of 32: the winners sit in as many different lanes or warps."""
    token = torch.arange(shape[2], device=gen.device)
    high = _block_ids(shape, gen) % 32 == token % 32
    return (normal(shape, torch.float32, gen) + high * 100.0).to(dtype)


def ties_but_few(shape, dtype, gen):
    """A plateau of zeros with about ten blocks above it."""
    odds = max(1, shape[1] // 10)
    return (torch.randint(0, odds, shape, generator=gen, device=gen.device) == 0).to(dtype)


def mostly_minus_inf(shape, dtype, gen):
    odds = max(1, shape[1] // 10)
    rare = torch.randint(0, odds, shape, generator=gen, device=gen.device) == 0
    return torch.where(rare, normal(shape, dtype, gen), minus_inf(shape, dtype, gen))


def any_bits(shape, dtype, gen):
    sign = FORMATS[dtype].sign
    return from_bits(_integers(sign, -sign, shape, dtype, gen), dtype)


KINDS = {f.__name__: f for f in (
    normal, quantised, constant, ascending, descending, staircase, sawtooth, minus_inf, specials,
    all_nan, some_nan, subnormal, zeros, shared_high_bits, low_bits, one_per_group, ties_but_few,
    mostly_minus_inf, any_bits,
)}  # fmt: skip
MIXTURE = "+".join(KINDS)


def generator(seed: int, device="cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def draw(kind: str, shape, dtype: torch.dtype = F32, seed=0, device="cpu") -> torch.Tensor:
    """Return ``(H, P, S)`` scores. Of kinds joined by ``+``, the tokens take one each in turn."""
    gen = seed if isinstance(seed, torch.Generator) else generator(seed, device)
    names = kind.split("+")
    scores = KINDS[names[0]](shape, dtype, gen)
    for i, name in enumerate(names[1 : shape[2]], 1):
        part = KINDS[name]((*shape[:2], len(range(i, shape[2], len(names)))), dtype, gen)
        integer = FORMATS[dtype].integer
        scores.view(integer)[..., i :: len(names)] = part.view(integer)
    return scores


def tokens(values, device="cpu") -> torch.Tensor:
    """Return an extent for each token."""
    return torch.tensor(values, dtype=torch.int32, device=device)


def _drawn(low, high, tokens_, gen):
    return torch.randint(low, high, (tokens_,), generator=gen, device=gen.device).int()


def _apart(lengths, tokens_, gen):
    chosen = tokens(lengths, gen.device)[_drawn(0, len(lengths), tokens_, gen).long()]
    return chosen + _drawn(-6, 7, tokens_, gen)


def _wild(blocks, tokens_, gen):
    table = [-(2**31), -(2**31) + 1, -5, -1, 0, 1, 2, 3, blocks - 1, blocks, blocks + 1,
             2 * blocks, 2**30, 2**31 - 1]  # fmt: skip
    table = torch.tensor(table, dtype=torch.int32, device=gen.device)
    return table[torch.randint(0, len(table), (tokens_,), generator=gen, device=gen.device)]


TOKEN_EXTENTS = {
    "random": lambda blocks, tokens_, gen: _drawn(0, blocks + 1, tokens_, gen),
    "short": lambda blocks, tokens_, gen: _drawn(-1, 9, tokens_, gen),
    "long": lambda blocks, tokens_, gen: _drawn(blocks // 2, blocks + 1, tokens_, gen),
    "causal": lambda blocks, tokens_, gen: torch.arange(
        blocks - tokens_ + 1, blocks + 1, device=gen.device, dtype=torch.int32
    ),
    "wild": _wild,
}
# About 128, up to which one warp answers a row of any width (short_row.cuh); and each row about a
# length up to which it is read in another way (rows_by_halves.cuh), beside rows of the others.
EDGE_EXTENTS = {
    "narrow": lambda blocks, tokens_, gen: _drawn(118, 140, tokens_, gen),
    "apart": lambda blocks, tokens_, gen: _apart((128, 256, 700, 2048, 4096, blocks), tokens_, gen),
}
UNIFORM_EXTENTS = ("none", "int")


def draw_extent(kind: str, blocks: int, tokens_: int, forced: int, seed=0, device="cpu"):
    """Return None, an int that the op accepts (None where there is none), or a tensor."""
    if kind == "none":
        return None
    if kind == "int":
        low = max(1, forced)
        host_seed = seed.initial_seed() if isinstance(seed, torch.Generator) else seed
        return random.Random(host_seed).randint(low, blocks) if low <= blocks else None
    gen = seed if isinstance(seed, torch.Generator) else generator(seed, device)
    return (TOKEN_EXTENTS | EDGE_EXTENTS)[kind](blocks, tokens_, gen)
