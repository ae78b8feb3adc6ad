# SPDX-License-Identifier: Apache-2.0
"""Static buffers of one call, and the CUDA graph that replays it."""

from __future__ import annotations

import torch
from guards import POISON, assert_exact
from scores import LOCAL, Spec, draw

from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference


class StaticCall:
    """Buffers whose addresses never change, as a serving engine keeps them."""

    def __init__(self, shape, spec: Spec = LOCAL, seed: int = 0, device="cuda") -> None:
        self.spec, self.shape, self.device = spec, shape, torch.device(device)
        self.gen = torch.Generator(device).manual_seed(seed)
        self.scores = torch.zeros(shape, dtype=spec.dtype, device=device)
        self.extents = torch.zeros(shape[2], dtype=torch.int32, device=device)
        self.output = torch.empty((shape[2], shape[0], spec.topk), dtype=torch.int32, device=device)
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.refill()

    def refill(self, kind: str = "normal+quantised+some_nan", low: int = -2) -> None:
        """Change scores and extents in place and poison the output, all on this stream."""
        self.scores.copy_(draw(kind, self.shape, self.spec.dtype, self.gen))
        high = self.shape[1] + 3
        self.extents.copy_(
            torch.randint(low, high, self.extents.shape, generator=self.gen, device=self.device)
        )
        self.output.fill_(POISON)

    def call(self) -> None:
        topk, _, begin, end = self.spec
        msa_topk_select(self.scores, topk, self.extents, self.output, begin, end)

    def expected(self) -> torch.Tensor:
        topk, _, begin, end = self.spec
        return reference(self.scores, topk, self.extents, begin, end)

    def count_wrong(self) -> None:
        """Compare without waiting for the device."""
        self.wrong += (self.output != self.expected()).any()

    def check(self) -> None:
        assert_exact(self.output, self.expected(), self.scores, self.extents)

    def capture(self, calls: int = 1) -> torch.cuda.CUDAGraph:
        """Warm up (a build may not happen inside a capture), then record."""
        with torch.cuda.device(self.device):
            self.call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # torch's own capture stream belongs to the GPU that was current at its first use.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(self.device)):
                for _ in range(calls):
                    self.call()
        return graph
