# SPDX-License-Identifier: Apache-2.0
"""Find needles in long contexts with ``msa_topk_select``; exit 1 if one is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from demo_lib.attention import dense_attention, proxy_scores, sparse_attention
from demo_lib.workload import BLOCK, HEAD_SIZE, HEADS, Workload, decode, prefill
from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference

_REPEATS = 5
_MAX_ERROR = 0.05


@dataclass(frozen=True)
class Outcome:
    """What one workload gave. Times are milliseconds."""

    needles: int
    found: int
    rows: int
    equal: int
    error: float
    times: dict[str, float]

    @property
    def ok(self) -> bool:
        """Whether every needle was found, every row exact, and the output close."""
        exact = self.found == self.needles and self.equal == self.rows
        return exact and self.error <= _MAX_ERROR


def timed(device: torch.device, function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Return the result of a call and its best time of a few, in milliseconds."""

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    best = float("inf")
    result = function(*args) if device.type == "cuda" else None  # warm: a first call may compile
    for _ in range(_REPEATS if device.type == "cuda" else 1):
        synchronize()
        start = time.perf_counter()
        result = function(*args)
        synchronize()
        best = min(best, time.perf_counter() - start)
    return result, best * 1e3


def needles_found(workload: Workload, chosen: torch.Tensor) -> tuple[int, int]:
    """Return how many needles lie in a block that their row chose, and how many there are."""
    block = torch.cat([request.needles for request in workload.requests]) // BLOCK
    hit = (block.unsqueeze(-1) == chosen.unsqueeze(-2)).any(-1)
    return int(hit.sum()), hit.numel()


def run(workload: Workload, topk: int, device: torch.device) -> tuple[torch.Tensor, Outcome]:
    """Score, select, attend; compare with the reference and with dense attention."""
    extents = workload.extents
    forced = workload.force_begin, workload.force_end
    scores, scoring = timed(device, proxy_scores, workload)

    def select() -> torch.Tensor:
        return msa_topk_select(scores, topk, extents, None, *forced)

    chosen, selecting = timed(device, select)
    expected = msa_topk_select_reference(scores, topk, extents, *forced)
    equal = (chosen == expected).all(-1)
    sparse, sparsely = timed(device, sparse_attention, workload, chosen)
    dense, densely = timed(device, dense_attention, workload)
    error = float((sparse.float() - dense.float()).norm() / dense.float().norm())
    found, needles = needles_found(workload, chosen)
    times = {"proxy": scoring, "select": selecting, "sparse": sparsely, "dense": densely}
    return chosen, Outcome(needles, found, equal.numel(), int(equal.sum()), error, times)


def report(workload: Workload, topk: int, outcome: Outcome) -> None:
    """Print one workload's figures."""
    contexts = [request.keys.shape[1] for request in workload.requests]
    extents = workload.extents
    read = float(extents.clamp(max=topk).sum() / extents.sum())
    times = outcome.times
    print(
        f"\n{workload.name}: {len(contexts)} requests, contexts {min(contexts):,} to "
        f"{max(contexts):,}, {len(extents):,} query tokens,\n"
        f"  extents {int(extents.min()):,} to {int(extents.max()):,} blocks, topk {topk}, "
        f"forced {workload.force_begin} at the start and {workload.force_end} at the end"
    )
    print(f"  needles found            {outcome.found:,} of {outcome.needles:,}")
    print(f"  rows equal to reference  {outcome.equal:,} of {outcome.rows:,}")
    print(f"  output error             {outcome.error:.2e} (relative to dense attention)")
    print(f"  keys attended to         {read:.1%}")
    print(
        f"  time                     proxy {times['proxy']:.2f} ms, selection "
        f"{times['select']:.3f} ms, sparse {times['sparse']:.2f} ms, dense {times['dense']:.2f} ms"
    )


def parse(gpu: bool, arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; the defaults grow where there is a GPU."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--context", type=int, default=262_144 if gpu else 65_536,
                        help="tokens of the longest context (default %(default)s)")  # fmt: skip
    parser.add_argument("--chunk", type=int, default=768 if gpu else 192,
                        help="tokens of the longer chunk (default %(default)s)")  # fmt: skip
    parser.add_argument("--requests", type=int, default=16 if gpu else 8,
                        help="requests that decode (default %(default)s)")  # fmt: skip
    parser.add_argument("--topk", type=int, default=16, help="blocks a row (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random contexts")
    parser.add_argument("--device", default="cuda" if gpu else "cpu", help="(default %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png",
                        help="draw the blocks that each query chose")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.context < 4 * (options.chunk + 4 * BLOCK):
        parser.error("--context must be at least four times --chunk plus 2048")
    if options.chunk < 1 or options.requests < 1 or not 6 <= options.topk <= 64:
        parser.error("--chunk and --requests must be positive, --topk from 6 to 64")
    return options


def main() -> int:
    """Run both workloads and return the exit code."""
    options = parse(torch.cuda.is_available())
    device = torch.device(options.device)
    random = torch.Generator(device).manual_seed(options.seed)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (the reference)"
    print(f"msa_topk_select on {where}, torch {torch.__version__}")
    print(f"{HEADS} index heads of size {HEAD_SIZE}, blocks of {BLOCK} keys, bf16 queries and keys")

    answers, ok = [], True
    for make, size in ((prefill, options.chunk), (decode, options.requests)):
        workload = make(options.context, size, random)
        chosen, outcome = run(workload, options.topk, device)
        report(workload, options.topk, outcome)
        answers.append((workload, chosen))
        ok &= outcome.ok
    if options.plot:
        from demo_lib.plot import plot

        plot(options.plot, answers)
        print(f"\nplot: {options.plot}")
    print("\nall needles found, every row exact" if ok else "\nFAILED", flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
