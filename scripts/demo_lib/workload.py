# SPDX-License-Identifier: Apache-2.0
"""Batches of requests whose queries have known keys, the needles, hidden far back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

HEADS, HEAD_SIZE, BLOCK = 4, 128, 128
TOPICS, NEEDLES = 8, 3  # topics a request asks about, and needles a topic has, for each head
ASK = 0.9  # cosine between a query and its topic; the rest of it is noise
STRENGTH = 1.75  # length of a needle over that of a plain key: a logit near 18 instead of 0 +- 1


@dataclass(frozen=True)
class Request:
    """The last tokens of one context. Keys and values are ``(H, T, D)``, queries ``(Q, H, D)``."""

    keys: torch.Tensor
    values: torch.Tensor
    queries: torch.Tensor
    needles: torch.Tensor  # (Q, H, NEEDLES): positions that this query and head must attend to

    @property
    def positions(self) -> torch.Tensor:
        """Position of each query in the context, ``(Q,)``."""
        context, tokens = self.keys.shape[1], self.queries.shape[0]
        return torch.arange(context - tokens, context, device=self.keys.device)

    @property
    def extents(self) -> torch.Tensor:
        """Blocks that each query may see under the causal mask, ``(Q,)`` int32."""
        return (self.positions // BLOCK + 1).int()

    @property
    def blocks(self) -> int:
        """Blocks of the whole context, the last one perhaps in part."""
        return -(-self.keys.shape[1] // BLOCK)


@dataclass(frozen=True)
class Workload:
    """Requests served by one call, and the blocks that the caller forces."""

    name: str
    requests: list[Request]
    force_begin: int
    force_end: int

    @property
    def extents(self) -> torch.Tensor:
        """Extents of all tokens in call order, ``(S,)`` int32."""
        return torch.cat([request.extents for request in self.requests])

    def slices(self) -> Iterator[tuple[Request, slice]]:
        """Yield each request with the slice of its tokens."""
        start = 0
        for request in self.requests:
            yield request, slice(start, start + len(request.queries))
            start += len(request.queries)


def make_request(context: int, tokens: int, random: torch.Generator) -> Request:
    """Hide needles in a context of that many tokens; its last `tokens` ask for them."""
    device = random.device

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=device, dtype=torch.float32)

    topics = min(TOPICS, tokens)
    direction = torch.nn.functional.normalize(normal(HEADS, topics, HEAD_SIZE), dim=-1)
    direction *= HEAD_SIZE**0.5
    past = (context - tokens) // BLOCK
    block = torch.rand(HEADS, topics, past, generator=random, device=device).argsort(-1)
    # Offsets that differ keep two needles from falling on one key.
    offset = torch.randperm(BLOCK, generator=random, device=device)[: topics * NEEDLES]
    position = block[..., :NEEDLES] * BLOCK + offset.view(topics, NEEDLES)

    keys = normal(HEADS, context, HEAD_SIZE).bfloat16()
    head = torch.arange(HEADS, device=device)
    keys[head.view(-1, 1, 1), position] = (STRENGTH * direction).unsqueeze(2).bfloat16()
    topic = torch.randint(topics, (tokens, HEADS), generator=random, device=device)
    noise = (1 - ASK**2) ** 0.5 * normal(tokens, HEADS, HEAD_SIZE)
    return Request(
        keys=keys,
        values=normal(HEADS, context, HEAD_SIZE).bfloat16(),
        queries=(ASK * direction[head, topic] + noise).bfloat16(),
        needles=position[head, topic],
    )


def prefill(context: int, chunk: int, random: torch.Generator) -> Workload:
    """Return the last chunks of two contexts in one call, a long one and a shorter one."""
    shapes = [(context, chunk), (context // 3 + 77, chunk // 3 + 1)]
    requests = [make_request(length, tokens, random) for length, tokens in shapes]
    return Workload("chunked prefill", requests, force_begin=1, force_end=2)


def decode(context: int, requests: int, random: torch.Generator) -> Workload:
    """Return one token of each of several contexts, from short to `context` long."""
    shortest = BLOCK * (NEEDLES + 1) + 1
    step = (context - shortest) / max(requests - 1, 1)
    lengths = [context - round(i * step) for i in range(requests)]
    batch = [make_request(length, 1, random) for length in lengths]
    return Workload("ragged decode", batch, force_begin=0, force_end=1)
