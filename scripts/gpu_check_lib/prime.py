# SPDX-License-Identifier: Apache-2.0
"""Build every kernel that the GPU tests use, side by side.

First those that most tests share: parts that each began with them would wait for one another.
No list can tell the others, so the tests are run once in parts, each part a process that builds
what it meets. Their results do not count here: the run that counts comes after.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from flashinfer_msa.warming import warmup

_ROOT = Path(__file__).resolve().parents[2]
_NO_TESTS = 5  # pytest's exit code of a part with nothing to do


def build_shared() -> None:
    """Build the kernels of `shared_builds`, as many at once as there are processors."""
    sys.path.insert(0, str(_ROOT / "tests"))
    from scores import shared_builds

    warmup(shared_builds())


def prime(jobs: int) -> int:
    """Run the GPU tests in parts; return how many parts passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu"]
    command += ["-p", "gpu_check_lib.shard", "tests"]
    environ = {**os.environ, "MAX_JOBS": "2"}
    parts = [
        subprocess.Popen(
            [*command, f"--shard={index}/{jobs}"],
            cwd=_ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in range(jobs)
    ]  # fmt: skip
    passed = 0
    for index, part in enumerate(parts):
        lines = part.communicate()[0].splitlines() or ["no output"]
        passed += part.returncode in (0, _NO_TESTS)
        print(f"part {index}: {lines[-1]}")
    return passed


def main() -> None:
    """Run the parts and tell how long that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.perf_counter()
    build_shared()
    print(f"built what most tests share in {time.perf_counter() - start:.0f} s", flush=True)
    passed = prime(options.jobs)
    took = time.perf_counter() - start
    print(f"built the tests' kernels in {took:.0f} s ({passed} of {options.jobs} parts passed)")


if __name__ == "__main__":
    main()
