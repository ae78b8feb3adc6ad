# SPDX-License-Identifier: Apache-2.0
"""How many compilers run side by side. No GPU, no CUDA."""

import logging
import math
from pathlib import Path

import pytest

from flashinfer_msa.jit import compiler, jobs, log

ODD = "a b$HOME $$x:c'd\"e é;f&g"


@pytest.mark.parametrize(("text", "count"), [("3", 3), (" 7 ", 7), ("", None)])
def test_32_max_jobs_is_honoured(text, count):
    assert jobs.parse_max_jobs(text) == count


@pytest.mark.parametrize("text", ["0", "-1", "abc", "1.5"])
def test_32_bad_max_jobs_warns_and_is_ignored(text, caplog, monkeypatch):
    monkeypatch.setattr(log, "_warned", set())
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        assert jobs.parse_max_jobs(text) is None
    assert f"MAX_JOBS={text!r}" in caplog.text


@pytest.mark.parametrize(
    ("cpus", "gigabytes", "count"),
    [(8, 100, 8), (64, 7, 3), (64, 1, 1), (0.5, 100, 1), (2.5, 100, 2), (4, math.inf, 4)],
)
def test_32_jobs_follow_cores_and_memory(monkeypatch, cpus, gigabytes, count):
    monkeypatch.setattr(jobs, "cpu_limit", lambda: cpus)
    monkeypatch.setattr(jobs, "free_memory", lambda: gigabytes * 2**30)
    assert jobs.job_count() == count


V1 = "cpu,cpuacct/a/cpu.cfs_"
CGROUPS = {
    "v2": ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"},
           {"a/memory.max": "5000", "a/memory.current": "2000", "a/b/memory.max": "max"}),
    "v1": ("3:cpu,cpuacct:/a\n4:memory:/a",
           {V1 + "quota_us": "150000", V1 + "period_us": "100000"},
           {"memory/a/memory.limit_in_bytes": "5000", "memory/a/memory.usage_in_bytes": "2000"}),
}  # fmt: skip


@pytest.mark.parametrize("version", CGROUPS)
def test_32_quota_of_the_cgroup_counts(tmp_path, monkeypatch, version):
    listing, cpu, memory = CGROUPS[version]
    for name, text in {**cpu, **memory}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    real = Path.read_text
    monkeypatch.setattr(jobs, "_CGROUP", tmp_path)
    monkeypatch.setattr(
        jobs.Path,
        "read_text",
        lambda self: listing if str(self) == "/proc/self/cgroup" else real(self),
    )
    monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert jobs.cpu_limit() == 1.5
    assert jobs.free_memory() == 3000


def test_max_jobs_reaches_ninja(machine):
    machine.patch.setenv("MAX_JOBS", "5")
    seen = []
    real = compiler.run_guarded
    machine.patch.setattr(
        compiler, "run_guarded", lambda command, *rest: seen.append(command) or real(command, *rest)
    )
    machine.load()
    assert seen[0][-2:] == ["-j", "5"]
