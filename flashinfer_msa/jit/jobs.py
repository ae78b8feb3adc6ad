# SPDX-License-Identifier: Apache-2.0
"""How many compilers may run side by side without starving or filling the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from .log import warn_once

BYTES_PER_JOB = 2 << 30
_CGROUP = Path("/sys/fs/cgroup")


def parse_max_jobs(text: str) -> int | None:
    """Read MAX_JOBS; what is no positive number is ignored with a warning."""
    if not text.strip():
        return None
    if text.strip().isdecimal() and int(text) > 0:
        return int(text)
    warn_once(f"MAX_JOBS={text!r} is not a positive number and is ignored")
    return None


def _cgroup_dirs(controller: str) -> Iterator[Path]:
    """Yield this process's cgroup folders, innermost first, for cgroup v2 and v1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        base = _CGROUP / names if names else _CGROUP
        here = base / path.lstrip("/")
        yield from (here, *(parent for parent in here.parents if parent.is_relative_to(base)))


def _read_numbers(path: Path) -> list[float]:
    try:
        return [math.inf if w == "max" else float(w) for w in path.read_text().split()]
    except (OSError, ValueError):
        return []


def cpu_limit() -> float:
    """Return the CPUs this process may use: its affinity and its cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        limit: float = len(os.sched_getaffinity(0))
    else:
        limit = os.cpu_count() or 1
    for folder in _cgroup_dirs("cpu"):
        quota = _read_numbers(folder / "cpu.max") or [
            *_read_numbers(folder / "cpu.cfs_quota_us"),
            *_read_numbers(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and quota[0] > 0 and quota[1] > 0:
            limit = min(limit, quota[0] / quota[1])
    return limit


def free_memory() -> float:
    """Return the bytes that can still be used: the machine's and the cgroup's."""
    free = math.inf
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    names = (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    for folder in _cgroup_dirs("memory"):
        for limit_name, used_name in names:
            limit, used = _read_numbers(folder / limit_name), _read_numbers(folder / used_name)
            if limit and used:
                free = min(free, limit[0] - used[0])
    return free


def job_count(max_jobs: str = "") -> int:
    """Return MAX_JOBS, else what cores, cgroup quota and free memory allow; at least 1."""
    wanted = parse_max_jobs(max_jobs)
    if wanted is not None:
        return wanted
    return max(1, int(min(cpu_limit(), free_memory() / BYTES_PER_JOB, 1024)))
