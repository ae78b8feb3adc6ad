# SPDX-License-Identifier: Apache-2.0
"""Run compute-sanitizer's tools over calls that reach every kernel; nothing may be found."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 86  # exit code of compute-sanitizer after a finding
STOPPED = 3  # of `sanitize_lib.calls` when its limit ended it
_MOST_PARTS = 4  # of a tool's calls; more would only wait for the GPU
_SHARE = 0.8  # of a tool's time, for the calls; starting and summing up take the rest
# "12/30 1.5 s RowPerQuad: ..." after each call, and what the calls end with
_PROGRESS = re.compile(r"^(\d+/\d+|\d+ of \d+ kernels called)", re.M)
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


class Step(NamedTuple):
    """What a tool came to."""

    name: str
    result: str
    findings: int | None
    seconds: float


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/sanitize", description=__doc__)
    parser.add_argument(
        "--tool", action="append", choices=TOOLS, help="only this one; may be given again"
    )
    parser.add_argument("--quick", action="store_true", help="one spec")
    parser.add_argument("--limit", type=float, default=420, help="seconds a tool may take")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="side by side")
    parser.add_argument("--out", type=Path, help="where the logs go")
    return parser.parse_args()


def find_sanitizer() -> str:
    """Find compute-sanitizer on PATH or in a toolkit; exit if there is none."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    for home in (*homes, "/usr/local/cuda"):
        for folder in ("bin", "compute-sanitizer"):
            path = Path(home, folder, "compute-sanitizer")
            if home and path.is_file() and os.access(path, os.X_OK):
                return str(path)
    found = shutil.which("compute-sanitizer")
    if found is None:
        sys.exit("compute-sanitizer was not found on PATH or in CUDA_HOME")
    return found


def environment() -> dict[str, str]:
    """Return the children's: each tensor gets memory of its own, of exactly its size."""
    return {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}


def run(command: list[str], log: Path, limit: float) -> tuple[int | None, float]:
    """Run a command into a log; return its exit code, None if it took too long, and seconds."""
    start = time.perf_counter()
    with log.open("wb") as file:
        # A session of its own: what a sanitizer watches would outlive it, and keep the GPU.
        child = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment(), start_new_session=True
        )
        try:
            code: int | None = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return code, time.perf_counter() - start


def run_tool(
    tool: str, sanitizer: str, calls: list[str], out: Path, limit: float, part: str = "0/1"
) -> Step:
    """Run one tool over a part of the calls, which stop in time for the tool's summary."""
    name = tool if part == "0/1" else f"{tool} {part.replace('/', ' of ')}"
    report, log = out / f"{name}.report", out / f"{name}.log"
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "50"]
    # torch probes for what a driver may not have; those failures are answers, not faults.
    command += ["--report-api-errors", "no", "--log-file", str(report)]
    calls = [*calls, "--limit", str(limit * _SHARE), "--part", part]
    calls += ["--races"] if tool == "racecheck" else []
    code, seconds = run([*command, *calls], log, limit)
    text = report.read_text(errors="replace") if report.is_file() else ""
    counts = [int(a or b) for a, b in _SUMMARY.findall(text)]
    findings = sum(counts) if counts else None
    said = _PROGRESS.findall(log.read_text(errors="replace")) or ["no calls"]
    if code is None:
        return Step(name, f"timed out, {said[-1]}", findings, seconds)
    if findings:
        return Step(name, "found", findings, seconds)
    if code == STOPPED:
        return Step(name, f"stopped, {said[-1]}", findings, seconds)
    if findings is None:
        return Step(name, f"no summary ({code})", None, seconds)
    return Step(name, "clean" if code == 0 else f"failed ({code})", 0, seconds)


def run_tools(
    tools: Sequence[str], sanitizer: str, calls: list[str], out: Path, limit: float, jobs: int
) -> Iterator[Step]:
    """Run the tools side by side, each in parts, for a part keeps one processor busy; in order."""
    parts = max(1, min(_MOST_PARTS, jobs // len(tools)))
    todo = [(tool, f"{part}/{parts}") for tool in tools for part in range(parts)]
    with ThreadPoolExecutor(len(todo)) as pool:
        yield from pool.map(
            lambda one: run_tool(one[0], sanitizer, calls, out, limit, one[1]), todo
        )


def show_failure(out: Path, step: Step) -> None:
    """Print the start of what a failed step said."""
    for name in (f"{step.name}.report", f"{step.name}.log"):
        path = out / name
        if path.is_file():
            lines = path.read_text(errors="replace").splitlines()
            print(f"--- {path}", *lines[:30], *(["..."] if len(lines) > 60 else []), sep="\n")
            print(*lines[30:][-30:], sep="\n", flush=True)


def main() -> int:
    """Check the coverage, run the tools, print a table."""
    options = parse()
    sanitizer = find_sanitizer()
    out = options.out or Path(tempfile.mkdtemp(prefix="sanitize."))
    out.mkdir(parents=True, exist_ok=True)
    calls = [sys.executable, "-m", "sanitize_lib.calls", *(["--quick"] if options.quick else [])]

    # First without a tool: it builds the kernels, and what no call reaches no tool sees.
    code, seconds = run([*calls, "--coverage"], out / "coverage.log", options.limit)
    lines = (out / "coverage.log").read_text(errors="replace").strip().splitlines()
    said = ", ".join(line for line in lines if "kernels reached" in line) or "no answer"
    steps = [Step("coverage", said if code in (0, 1) else f"failed ({code})", None, seconds)]
    bad = [steps[0]] if code != 0 else []
    tools = options.tool or TOOLS
    for step in run_tools(tools, sanitizer, calls, out, options.limit, options.jobs):
        print(f"{step.name}: {step.result}, {step.seconds:.0f} s", flush=True)
        steps.append(step)
        if step.result != "clean":
            bad.append(step)
    for step in bad:
        show_failure(out, step)

    print(f"\n{'tool':18} {'result':60} {'findings':>8} {'seconds':>8}")
    for step in steps:
        findings = "" if step.findings is None else step.findings
        print(f"{step.name:18} {step.result:60} {findings:>8} {step.seconds:8.0f}")
    total = sum(step.findings or 0 for step in steps)
    print(f"logs: {out}")
    print(f"sanitize: {said}, {total} findings, {'FAILED' if bad else 'clean'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
