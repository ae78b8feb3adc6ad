# SPDX-License-Identifier: Apache-2.0
"""Times of launches inside CUDA graphs, and of calls on the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_WARM_REPLAYS, _REPLAYS = 3, 21
_HEAD_START = 120_000  # clock ticks, about 60 us: the graph is queued before it may start
_HOST_CALLS, _HOST_ROUNDS = 300, 15


@dataclass(frozen=True)
class Timing:
    """Microseconds of one launch, over the replays of a graph."""

    median: float
    low: float  # 20 % quantile
    high: float  # 80 % quantile


def launches_for(size: int) -> int:
    """Return how many launches a graph holds for scores of that many bytes."""
    return 64 if size <= 16 << 20 else 20


def time_graph(launch: Callable[[int], object], launches: int, flush: bool = False) -> Timing:
    """Capture ``launch(0) ... launch(launches - 1)`` back to back and time the replays.

    Parameters
    ----------
    launch : callable
        Enqueues launch `i` on the current stream.
    launches : int
        Launches in the graph.
    flush : bool
        Read more than the L2 holds before each replay, so that even small inputs come from memory.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch(0)  # a first call may build, load and allocate; nothing of that may be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(i)
    evict = torch.ones(64 << 20, device="cuda") if flush else None
    pairs = []
    for _ in range(_WARM_REPLAYS + _REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if evict is not None:
            evict.sum()
        # Without a head start the gap between event and graph would be counted.
        torch.cuda._sleep(_HEAD_START)
        start.record()
        graph.replay()
        stop.record()
        pairs.append((start, stop))
    torch.cuda.synchronize()
    times = [start.elapsed_time(stop) * 1e3 / launches for start, stop in pairs[_WARM_REPLAYS:]]
    fifths = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), fifths[0], fifths[-1])


def time_host(call: Callable[[], object]) -> float:
    """Return the host's microseconds for one call while the GPU keeps up."""
    rounds = []
    for _ in range(_HOST_ROUNDS + 1):  # the first round warms up
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_HOST_CALLS):
            call()
        rounds.append((time.perf_counter() - start) / _HOST_CALLS * 1e6)
    torch.cuda.synchronize()
    return statistics.median(rounds[1:])
