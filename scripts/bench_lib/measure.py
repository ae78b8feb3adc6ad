# SPDX-License-Identifier: Apache-2.0
"""One measurement: the selector, the floor of its bytes, and its peers, on one case."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from bench_lib import peers
from bench_lib.cases import Case
from bench_lib.floor import Floor
from bench_lib.inputs import buffers_for, make_inputs
from bench_lib.limit import Limit, kernel_of
from bench_lib.timing import Timing, launches_for, time_graph, time_host
from flashinfer_msa.msa_ops import msa_topk_select

_MEMORY_SHARE = 0.8  # of the free memory, for the buffers of one case


@dataclass
class Row:
    """Microseconds of one case."""

    case: Case
    timing: Timing
    floor: float
    peers: dict[str, float] = field(default_factory=dict)
    limit: float | None = None  # of the same reads alone, where that is known

    @property
    def time(self) -> float:
        """Median time of the selector."""
        return self.timing.median

    @property
    def over_floor(self) -> float:
        """Time as a multiple of one read of the scores."""
        return self.time / self.floor

    @property
    def best_peer(self) -> tuple[str, float] | None:
        """Name and time of the fastest peer."""
        best = min(self.peers, key=self.peers.__getitem__, default=None)
        return None if best is None else (best, self.peers[best])

    @property
    def speedup(self) -> float | None:
        """How many times faster than the fastest peer."""
        return None if self.best_peer is None else self.best_peer[1] / self.time


class Bench:
    """Measures cases on the current GPU."""

    def __init__(self, flush: bool, live_torch: bool) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.device)
        self.floor, self.limit = Floor(self.device), Limit(self.device)
        self.flush = flush
        self.live_torch = live_torch
        # A record is of one GPU: on another it would mean nothing.
        same = self.name.startswith(peers.recorded_gpu())
        self.record = peers.load() if same else {}

    def too_large(self, case: Case) -> bool:
        """Tell whether the buffers of a case would not fit."""
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        copies = buffers_for(case, launches_for(case.bytes))
        widest = 3 * 4 * case.heads * case.blocks * case.tokens  # float32 while it is filled
        return copies * case.bytes + widest > free * _MEMORY_SHARE

    def measure(self, case: Case) -> Row:
        """Time one case."""
        launches = launches_for(case.bytes)
        inputs = make_inputs(case, launches, self.device)
        count = len(inputs.scores)

        def select(i: int) -> None:
            scores, output = inputs.scores[i % count], inputs.outputs[i % count]
            msa_topk_select(scores, case.topk, inputs.extents, output, *case.force)

        def read(i: int) -> None:
            self.floor.read(inputs.scores[i % count])

        floor = time_graph(read, launches, self.flush).median
        row = Row(case, time_graph(select, launches, self.flush), floor)
        kernel = kernel_of(case)
        if kernel is not None:

            def read_alike(i: int) -> None:
                self.limit.read(inputs.scores[i % count], inputs.outputs[i % count], kernel)

            row.limit = time_graph(read_alike, launches, self.flush).median
        if case.is_standard:
            record = self.record.get(case.key, {})
            row.peers = {n: t for n, t in record.items() if n != "read_floor"}
        if self.live_torch and case.bytes < 64 << 20:
            row.peers["torch live"] = self._torch(case)
        return row

    def _torch(self, case: Case) -> float:
        launches = launches_for(case.bytes)
        scores = make_inputs(case, launches, self.device).scores
        # torch is at its best where a row is contiguous.
        rows = [s.transpose(1, 2).contiguous().transpose(1, 2) for s in scores]
        return time_graph(
            lambda i: peers.torch_topk(rows[i % len(rows)], case.topk), launches, self.flush
        ).median

    def empty_launch(self) -> float:
        """Return the time of a launch that does nothing."""
        return time_graph(lambda _: self.floor.empty(), 64).median

    def host(self) -> dict[str, float]:
        """Return the host's time for one warm call, against an empty launch from Python."""
        case = Case("decode", 4, 128, 1, heat="hot")
        inputs = make_inputs(case, 1, self.device)
        scores, output = inputs.scores[0], inputs.outputs[0]
        stream = torch.cuda.current_stream().cuda_stream
        empty = self.floor.library.bench_empty

        def call(output: torch.Tensor | None) -> None:
            msa_topk_select(scores, case.topk, inputs.extents, output, *case.force)

        return {
            "empty launch through ctypes": time_host(lambda: empty(stream)),
            "call with output": time_host(lambda: call(output)),
            "call without output": time_host(lambda: call(None)),
        }
