# SPDX-License-Identifier: Apache-2.0
"""Cold starts on a GPU: many processes compile once, and a killed builder holds up nobody.

A script that logs its calls stands before the real nvcc, so that compilations can be counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flashinfer_msa.env import Settings
from flashinfer_msa.jit.toolchain import find_toolchain
from flashinfer_msa.spec import TopKSelectSpec

_ROOT = Path(__file__).resolve().parents[2]
_SPEC = TopKSelectSpec(16, "f32", 1, 2, "token")
_UNITS = len([name for name in _SPEC.sources() if name.endswith(".cu")])
_PROCESSES = 8
# Ready to call, it waits for a file, so that all start at once; then one call, checked.
_CALLER = """
import json, os, sys, time, torch
from flashinfer_msa import jit
from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference
from flashinfer_msa.spec import TopKSelectSpec
ready, go, load_only = sys.argv[1:]
score = torch.randn(2, 300, 64, generator=torch.Generator().manual_seed(7))
extent = torch.arange(64, dtype=torch.int32) * 5
spec = TopKSelectSpec(16, "f32", 1, 2, "token")
if not load_only:
    on_gpu = score.cuda(), extent.cuda()
    torch.cuda.synchronize()
open(ready, "w").close()
while not os.path.exists(go):
    time.sleep(0.002)
began = time.monotonic()
if load_only:
    right = jit.load(spec, (9, 0)).flashinfer_msa_abi_version() == spec.abi
else:
    answer = msa_topk_select(on_gpu[0], 16, on_gpu[1], None, 1, 2)
    torch.cuda.synchronize()
    right = torch.equal(answer.cpu(), msa_topk_select_reference(score, 16, extent, 1, 2))
print(json.dumps({"right": right, "seconds": time.monotonic() - began}))
"""


class Machine:
    """A toolkit that logs, and callers that all use one cache."""

    def __init__(self, work: Path, load_only: bool) -> None:
        self.work, self.load_only = work, load_only
        self.log = work / "nvcc.log"
        nvcc = find_toolchain(Settings.read()).nvcc
        script = work / "cuda" / "bin" / "nvcc"
        script.parent.mkdir(parents=True)
        script.write_text(f'#!/bin/sh\necho "$$ $*" >>"{self.log}"\nexec "{nvcc}" "$@"\n')
        script.chmod(0o755)
        self.cache = work / "none"

    def begin(self, name: str) -> None:
        """Start a scene with an empty cache and an empty log."""
        self.cache = self.work / name
        self.cache.mkdir()
        self.log.write_text("")
        (self.work / "go").unlink(missing_ok=True)

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start a caller and return when it is ready to call, or has ended."""
        ready = self.cache / f"ready.{name}"
        words = [str(ready), str(self.work / "go"), "1" if self.load_only else ""]
        env = {**os.environ, "CUDA_HOME": str(self.work / "cuda"), "PYTHONPATH": str(_ROOT)}
        env["FLASHINFER_MSA_CACHE_DIR"] = str(self.cache / "kernels")
        env.pop("FLASHINFER_MSA_ARCH_LIST", None)
        process = subprocess.Popen(
            [sys.executable, "-c", _CALLER, *words], env=env, stdout=subprocess.PIPE, text=True
        )
        while not ready.exists() and process.poll() is None:
            time.sleep(0.01)
        return process

    def go(self) -> None:
        """Let every caller call."""
        (self.work / "go").touch()

    def calls(self, word: str) -> list[int]:
        """Return the process ids of nvcc's calls with a word."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [int(line[0]) for line in lines if word in line[1:]]


def finish(process: subprocess.Popen[str]) -> float:
    """Return how long a caller's call took, after checking its answer."""
    out, _ = process.communicate(timeout=300)
    if process.returncode != 0:
        sys.exit(f"a caller failed with {process.returncode}")
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    if not said["right"]:
        sys.exit("a caller's answer is not the reference's")
    return float(said["seconds"])


def expect(condition: bool, what: str) -> None:
    """End the step if something is not so."""
    if not condition:
        sys.exit(f"cold: {what}")


def start_together(machine: Machine) -> float:
    """Let many processes make the first call at once; return the slowest one's seconds."""
    machine.begin("together")
    callers = [machine.start(str(number)) for number in range(_PROCESSES)]
    machine.go()
    slowest = max([finish(caller) for caller in callers])
    compiled, linked = len(machine.calls("-c")), len(machine.calls("-shared"))
    expect(compiled == _UNITS, f"{compiled} compilations instead of {_UNITS}")
    expect(linked == 1, f"{linked} links instead of 1")
    return slowest


def kill_a_builder(machine: Machine) -> float:
    """Kill a process while it compiles; return the seconds of the one that calls next."""
    machine.begin("killed")
    builder = machine.start("builder")
    machine.go()
    while not machine.calls("-c"):
        expect(builder.poll() is None, "the builder ended before it compiled")
        time.sleep(0.01)
    time.sleep(0.3)  # nvcc is well under way
    compilers = machine.calls("-c")
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    after = finish(machine.start("next"))
    alive = [pid for pid in compilers if Path(f"/proc/{pid}").exists()]
    expect(not alive, f"compilers of the killed builder are still there: {alive}")
    return after


def main() -> None:
    """Play the scenes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--load-only", action="store_true", help="for a machine without a GPU")
    options = parser.parse_args()
    work = options.out.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    machine = Machine(work, options.load_only)
    machine.begin("alone")
    alone = machine.start("alone")
    machine.go()
    one_build = finish(alone)
    together = start_together(machine)
    after = kill_a_builder(machine)
    expect(after <= 2 * one_build, f"{after:.1f} s after a kill, one build is {one_build:.1f} s")
    print(
        f"cold: {_PROCESSES} processes compiled once and answered right in {together:.1f} s; one "
        f"build {one_build:.1f} s, after a killed builder {after:.1f} s"
    )


if __name__ == "__main__":
    main()
