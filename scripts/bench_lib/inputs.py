# SPDX-License-Identifier: Apache-2.0
"""Scores, extents and outputs of a case, and the buffers to rotate over."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench_lib.cases import BLOCK, SHORT, Case

COLD_BYTES = 160 << 20  # more than twice the largest L2, 60 MB
DTYPE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_GROUP = 32


@dataclass(frozen=True)
class Inputs:
    """Buffers of one case; launch `i` uses buffer ``i % len(scores)``."""

    scores: list[torch.Tensor]
    outputs: list[torch.Tensor]
    extents: torch.Tensor | int | None


def causal_extents(case: Case, device: torch.device) -> torch.Tensor:
    """Return the blocks that each token may see, ``(S,)`` int32."""
    if case.kind == "decode":
        return torch.full((case.tokens,), case.blocks, dtype=torch.int32, device=device)
    position = torch.arange(case.tokens, device=device) + case.blocks * BLOCK - case.tokens
    return (position.clamp(min=0) // BLOCK + 1).int()


def _fill(case: Case, device: torch.device) -> torch.Tensor:
    """Return ``(H, P, S)`` scores, S contiguous, before the causal limit is applied."""
    shape = case.heads, case.blocks, case.tokens
    block = torch.arange(case.blocks, device=device, dtype=torch.float32)[:, None]
    if case.scores in ("normal", "alternating"):
        return torch.randn(shape, device=device)
    if case.scores == "ties":  # all equal but topk of them
        high = torch.rand(case.blocks, device=device).argsort().argsort() < case.topk
        return torch.where(high, block.squeeze(1), -1.0)[:, None].expand(shape).contiguous()
    columns = {
        "constant": torch.zeros_like(block),
        "ascending": block,
        "descending": -block,
        "groups": torch.where(block % _GROUP == 0, block, -block),  # one high block in each group
        "inf": torch.full_like(block, -torch.inf),
    }
    return columns[case.scores].expand(shape).contiguous()


def make_scores(case: Case, device: torch.device) -> torch.Tensor:
    """Return one buffer of scores in the case's type and memory order."""
    scores = _fill(case, device)
    if case.kind == "prefill":
        block = torch.arange(case.blocks, device=device)[:, None]
        scores.masked_fill_(block >= causal_extents(case, device), -torch.inf)
    scores = scores.to(DTYPE[case.dtype])
    if case.order == "P":
        scores = scores.transpose(1, 2).contiguous().transpose(1, 2)
    return scores


def make_extents(case: Case, device: torch.device) -> torch.Tensor | int | None:
    """Return the argument ``num_valid_pages`` of a case."""
    if case.extent == "none":
        return None
    if case.extent == "int":
        return case.blocks
    extents = causal_extents(case, device)
    if case.extent == "short":
        extents.clamp_(max=SHORT)
    if case.extent == "mixed":
        share = torch.rand(
            case.tokens, generator=torch.Generator(device).manual_seed(1), device=device
        )
        extents = (extents * share).int() + 1
    if case.scores == "alternating":
        extents[::2] = 1
    return extents


def buffers_for(case: Case, launches: int) -> int:
    """Return how many buffers a graph of that many launches rotates over."""
    return 1 if case.heat == "hot" else min(-(-COLD_BYTES // case.bytes), launches)


def make_inputs(case: Case, launches: int, device: torch.device) -> Inputs:
    """Allocate one buffer (hot), or as many as make the L2 useless to later launches (cold)."""
    count = buffers_for(case, launches)
    shape = case.tokens, case.heads, case.topk
    outputs = [torch.empty(shape, dtype=torch.int32, device=device) for _ in range(count)]
    scores = [make_scores(case, device) for _ in range(count)]
    return Inputs(scores, outputs, make_extents(case, device))
