# SPDX-License-Identifier: Apache-2.0
"""Time msa_topk_select in CUDA graphs, beside the floor of its bytes and its peers."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench_lib import report
from bench_lib.cases import Case, hostile, neighbours, recorded
from bench_lib.measure import Bench, Row


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__ + " Without --quick or --full: the recorded shapes, hostile scores and "
        "host times. Cold launches rotate over more memory than the L2 holds, as far as the "
        "launches of one graph go: buffers of a few KB stay in it, here as in the record. Ctrl-C "
        "ends it with what has been measured.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="the recorded shapes alone")
    size.add_argument("--full", action="store_true", help="their neighbours too")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--torch", action="store_true", help="time torch.topk and sort as well")
    parser.add_argument("--flush", action="store_true", help="evict the L2 before each graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw time over blocks")
    parser.add_argument("--dry-run", action="store_true", help="print the cases and stop")
    return parser.parse_args()


def choose(options: argparse.Namespace) -> tuple[list[Case], list[Case]]:
    """Return the cases to time, and the hostile ones."""
    cases = recorded() + (neighbours() if options.full else [])
    harm = [] if options.quick else hostile()
    matching = [case for case in dict.fromkeys(cases) if options.match in case.name]
    return matching, [case for case in harm if options.match in case.name]


def measure_all(bench: Bench, cases: list[Case], rows: list[Row]) -> None:
    """Time the cases that fit, telling which do not, and append what came of each."""
    for number, case in enumerate(cases, 1):
        if bench.too_large(case):
            print(f"skipped, too large for the free memory: {case.name}", file=sys.stderr)
            continue
        if sys.stderr.isatty():
            print(f"\r\033[K{number}/{len(cases)} {case.name}", end="", file=sys.stderr, flush=True)
        rows.append(bench.measure(case))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def dry_run(cases: list[Case], harm: list[Case]) -> None:
    """Print what would be measured."""
    for case in (*cases, *harm):
        print(f"{case.name:58} {case.bytes / 2**20:10.3f} MiB")
    print(f"{len(cases)} cases, {len(harm)} with hostile scores")


def main() -> int:
    """Measure, print, write; return the exit code."""
    options = parse()
    cases, harm = choose(options)
    if options.dry_run:
        dry_run(cases, harm)
        return 0
    if not torch.cuda.is_available():
        print("scripts/bench needs a CUDA GPU; --dry-run lists the cases", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    start = time.perf_counter()
    bench = Bench(options.flush, options.torch)
    empty = bench.empty_launch()
    print(f"{bench.name}, torch {torch.__version__}; empty launch {empty:.2f} us")
    result: dict[str, Any] = {"gpu": bench.name, "torch": torch.__version__}
    result |= {"cuda": torch.version.cuda, "empty_launch_us": empty}

    rows: list[Row] = []
    hostile_rows: list[Row] = []
    try:
        measure_all(bench, cases, rows)
        measure_all(bench, harm, hostile_rows)
    except KeyboardInterrupt:
        print("interrupted; what was measured until then:", file=sys.stderr)
        result["interrupted"] = True
    report.print_rows(rows)
    if hostile_rows:
        report.print_hostile(hostile_rows)
    if not options.quick:
        result["host_us"] = bench.host()
        report.print_host(result["host_us"])
    report.print_extents(rows)
    report.print_summary(rows)
    result["rows"] = [report.row_as_json(row) for row in rows]
    result["hostile"] = [report.row_as_json(row) for row in hostile_rows]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        from bench_lib.plot import plot

        plot(options.plot, rows, bench.name)
    print(f"{len(rows) + len(hostile_rows)} cases in {time.perf_counter() - start:.0f} s")
    return 130 if "interrupted" in result else 0


if __name__ == "__main__":
    sys.exit(main())
