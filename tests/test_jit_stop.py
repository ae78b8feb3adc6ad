# SPDX-License-Identifier: Apache-2.0
"""Compilers outlive nobody, and builds share nothing. No GPU, no CUDA."""

import logging
import os
import signal
import subprocess
import threading
import time

import pytest
from fake_cuda import DummySpec, has_ended, sleepers, wait_until

from flashinfer_msa import jit
from flashinfer_msa.jit import process

ODD = "a b$HOME $$x:c'd\"e é;f&g"


def busy_compilers(machine) -> set[int]:
    """Return the pids of running nvcc scripts."""
    return {call[0] for call in machine.cuda.calls("-c") if not has_ended(call[0])}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_52_no_compiler_outlives_the_builder(machine, number):
    marker = f"{300 + number}.{os.getpid()}"  # unlike that of any other run
    machine.cuda.set(sleep=marker)
    builder = machine.start("0")
    wait_until(lambda: sleepers(marker))
    builder.send_signal(number)
    _, err = builder.communicate(timeout=20)
    wait_until(lambda: not sleepers(marker) and not busy_compilers(machine), 5)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
        assert list((machine.cache / "staging").iterdir()) == []
    machine.cuda.set(sleep=0)
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_52_compiler_that_ignores_sigterm_is_killed(machine, monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.3)
    script = machine.folder / "stubborn"
    script.write_text("#!/bin/sh\ntrap '' TERM INT\necho up > up\nwhile :; do sleep 0.1; done\n")
    script.chmod(0o755)
    pids = []

    def interrupt(self, timeout=None):
        wait_until((machine.folder / "up").exists)
        if timeout is None and not pids:
            pids.append(self.pid)
            raise KeyboardInterrupt
        return real(self, timeout)

    real = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", interrupt)
    with (machine.folder / "log").open("wb") as log_file, pytest.raises(KeyboardInterrupt):
        process.run_guarded([str(script)], machine.folder, os.environ, log_file)
    assert has_ended(pids[0])


def test_stop_all_ends_the_builds_of_other_threads(machine):
    marker = f"411.{os.getpid()}"
    machine.cuda.set(sleep=marker)
    failures = []

    def run():
        try:
            jit.load(DummySpec("stopped"), (9, 0))
        except jit.CompileError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: sleepers(marker))
    process.stop_all()
    thread.join(10)
    assert failures
    assert not sleepers(marker)


def test_08_builds_share_no_directory(machine):
    machine.cuda.set(sleep=0.2)
    builders = [machine.start(*"abcd") for _ in range(4)]
    builders += [machine.start(*"dcba") for _ in range(4)]
    seen = set()
    while any(builder.poll() is None for builder in builders):
        seen |= {p.name for p in (machine.cache / "staging").glob("*")}
        time.sleep(0.01)
    for builder in builders:
        assert builder.returncode == 0, builder.communicate()
    assert len(machine.entries()) == 4
    assert machine.cuda.compiles() == 4
    assert len(seen) == 4


def test_driver_older_than_the_toolkit_is_told(machine, caplog):
    from flashinfer_msa.jit import driver

    version = machine.folder / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\n")
    machine.patch.setattr(driver, "_VERSION_FILE", version)
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        machine.load()
    assert "driver 580 or newer, but this machine has 535" in caplog.text
