# SPDX-License-Identifier: Apache-2.0
"""Tables, a summary, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bench_lib.cases import SHORT, Case
from bench_lib.measure import Row

_HOST_TARGETS = {"call with output": 4.0, "call without output": 8.0}
_HOSTILE_LIMIT = 3.0
_SHORT_LIMIT = 1.5  # narrow scores are read while their extents are; wide ones when those are known
_MIXED_LIMIT = 1.1  # the longest is among them, and runs differ
_GEOMEAN_TARGET = 1.5


def target(case: Case, floor: float) -> float | None:
    """Return the microseconds that a standard case should take at most, if it has a target."""
    if not case.is_standard:
        return None
    if case.kind == "prefill":
        if case.heat == "hot":
            return None
        return floor * (1.25 if case.blocks >= 512 else 1.6)
    if case.blocks <= 512:
        return 2.0 if case.heads * case.tokens <= 256 else None
    latency = {(2048, 1): 2.3, (8192, 1): 3.0}
    if case.blocks == 8192 and case.tokens == 256:
        return 1.5 * floor
    return latency.get((case.blocks, case.tokens))


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def is_missed(row: Row) -> bool:
    """Tell whether a row is slower than its target."""
    limit = target(row.case, row.floor)
    return limit is not None and row.time > limit


def _badness(row: Row) -> tuple[bool, float]:
    """Sort key: rows with a peer first, the least ahead of it first; then far from the floor."""
    return row.speedup is None, row.speedup or -row.over_floor


def print_rows(rows: list[Row]) -> None:
    """Print all rows, the worst first."""
    print(f"\n{'case':58} {'us':>8} {'20-80 %':>15} {'floor':>8} {'x':>5} {'target':>7}  best peer")
    for row in sorted(rows, key=_badness):
        limit = target(row.case, row.floor)
        mark = "-" if limit is None else f"{limit:.2f}" + ("!" if is_missed(row) else "")
        peer = ""
        if row.best_peer is not None:
            name, time = row.best_peer
            peer = f"{name} {time:.2f}  {row.speedup:.2f}x" + (" !" if row.speedup <= 1 else "")
        if row.limit is not None:
            peer += f"  reads alone {row.limit:.2f}"
        spread = f"{row.timing.low:.2f}-{row.timing.high:.2f}"
        print(
            f"{row.case.name:58} {row.time:8.2f} {spread:>15} {row.floor:8.2f} "
            f"{row.over_floor:5.2f} {mark:>7}  {peer}"
        )


def print_extents(rows: list[Row]) -> None:
    """Print what extents shorter than the scores cost: against narrow scores, or long extents."""
    times = {row.case: row.time for row in rows}
    for row in rows:
        if row.case.extent == "short":
            other, limit = replace(row.case, blocks=SHORT, extent="token"), _SHORT_LIMIT
            told = f"extents of {SHORT} in {row.case.name}", f"P = {SHORT}"
        elif row.case.extent == "mixed":
            other, limit = replace(row.case, extent="token"), _MIXED_LIMIT
            told = f"all extents in {row.case.name}", "the longest alone"
        else:
            continue
        if other in times:
            ratio = row.time / times[other]
            print(f"{told[0]}: {ratio:.2f} x {told[1]}{' !' if ratio > limit else ''}")


def print_summary(rows: list[Row]) -> None:
    """Print how the rows stand against peers and targets."""
    raced = [row.speedup for row in rows if row.speedup is not None]
    if raced:
        behind = sum(speedup <= 1 for speedup in raced)
        print(
            f"\nfastest peer: {behind} of {len(raced)} rows not faster; geometric mean "
            f"{geometric_mean(raced):.2f}x (target {_GEOMEAN_TARGET}x), worst {min(raced):.2f}x"
        )
    aimed = [row for row in rows if target(row.case, row.floor) is not None]
    if aimed:
        print(f"targets: {sum(map(is_missed, aimed))} of {len(aimed)} missed")


def print_hostile(rows: list[Row]) -> None:
    """Print hostile scores as multiples of normal ones; rows come in groups, normal first."""
    print(f"\n{'hostile scores':58} {'us':>8} {'x normal':>9}")
    normal = math.nan
    for row in rows:
        normal = row.time if row.case.scores == "normal" else normal
        ratio = row.time / normal
        mark = " !" if ratio > _HOSTILE_LIMIT else ""
        print(f"{row.case.name:58} {row.time:8.2f} {ratio:9.2f}{mark}")


def print_host(times: dict[str, float]) -> None:
    """Print the host's time for one call, and how much it is over an empty launch."""
    base = next(iter(times.values()))
    print(f"\n{'host, one warm call':58} {'us':>8} {'over':>9}")
    for name, time in times.items():
        limit = _HOST_TARGETS.get(name, math.inf)
        mark = f" (at most {limit:.0f}{', missed' if time - base > limit else ''})"
        print(f"{name:58} {time:8.2f} {time - base:9.2f}{mark if limit < math.inf else ''}")


def row_as_json(row: Row) -> dict[str, Any]:
    """Return one row as plain values."""
    return {
        **vars(row.case),
        "median_us": row.timing.median,
        "low_us": row.timing.low,
        "high_us": row.timing.high,
        "floor_us": row.floor,
        "limit_us": row.limit,
        "target_us": target(row.case, row.floor),
        "peers_us": row.peers,
        "speedup": row.speedup,
    }
