# SPDX-License-Identifier: Apache-2.0
"""Build every kernel that the GPU tests use, side by side.

No list can tell which those are, so the tests are run once in parts, each part a process that
builds what it meets. Their results do not count here: the run that counts comes after.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_NO_TESTS = 5  # pytest's exit code of a part with nothing to do


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
    passed = prime(options.jobs)
    took = time.perf_counter() - start
    print(f"built the tests' kernels in {took:.0f} s ({passed} of {options.jobs} parts passed)")


if __name__ == "__main__":
    main()
