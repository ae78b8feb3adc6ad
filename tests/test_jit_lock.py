# SPDX-License-Identifier: Apache-2.0
"""Several processes at once: one build, no state of a lock that stops anybody. No GPU, no CUDA."""

import logging
import socket
import time

import pytest
from fake_cuda import DummySpec, finish, has_ended, started, wait_until

from flashinfer_msa.jit import lock

NO_LOCK = """
import filelock
def acquire(*_, **__):
    raise OSError(37, "No locks available")
filelock.FileLock.acquire = acquire
"""
HOST = "import socket; socket.gethostname = lambda: {!r}\n"


def test_01_killed_builder_delays_nobody(machine):
    machine.cuda.set(sleep=60)
    builder = machine.start("0")
    wait_until(lambda: started(machine))
    builder.kill()
    builder.communicate()
    machine.cuda.set(sleep=0)
    began = time.monotonic()
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert time.monotonic() - began < 10


def test_01_builder_killed_with_its_whole_group_delays_nobody(machine):
    machine.cuda.set(sleep=60)
    builder = machine.start("0")
    wait_until(lambda: started(machine))
    (call,) = machine.cuda.calls("-c")
    builder.kill()
    builder.communicate()
    wait_until(lambda: has_ended(call[0]))
    machine.cuda.set(sleep=0)
    waiters = [machine.start("0") for _ in range(3)]
    assert [finish(waiter)["versions"] for waiter in waiters] == [[1]] * 3
    assert machine.cuda.compiles() == 2


@pytest.mark.parametrize("content", ["", "junk", "12345"])
def test_02_leftover_lock_file_stops_nobody(machine, content):
    machine.load(DummySpec("first"))
    for path in (machine.cache / "locks").iterdir():
        path.write_text(content)
    next((machine.cache / "v1").glob("*")).rename(machine.folder / "gone")
    assert machine.load(DummySpec("first")).flashinfer_msa_abi_version() == 1


def test_02_directory_in_the_place_of_the_lock_stops_nobody(machine):
    path = machine.folder / "x.lock"
    path.mkdir()
    with lock.hold(path, 5) as held:
        assert not held


def test_03_waiter_tells_which_lock_who_holds_it_and_for_how_long(machine, caplog):
    assert lock.FIRST_REPORT <= 10
    assert lock.REPORT_EVERY <= 10
    machine.patch.setattr(lock, "FIRST_REPORT", 0.1)
    machine.patch.setattr(lock, "REPORT_EVERY", 0.2)
    machine.cuda.set(sleep=1.5)
    builder = machine.start("0")
    wait_until(lambda: started(machine))
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        machine.load()
    lines = [line for line in caplog.messages if line.startswith("waiting for")]
    assert len(lines) >= 2
    assert str(machine.cache / "locks") in lines[0]
    assert f"pid {builder.pid} on {socket.gethostname()}" in lines[0]
    finish(builder)
    assert machine.cuda.compiles() == 1


def test_04_wait_is_bounded_and_its_end_is_no_failure(machine, caplog):
    machine.patch.setenv("FLASHINFER_MSA_LOCK_TIMEOUT", "0.3")
    machine.cuda.set(sleep=2)
    builder = machine.start("0")
    wait_until(lambda: started(machine))
    machine.cuda.set(sleep=0)
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        assert machine.load().flashinfer_msa_abi_version() == 1
    (line,) = [line for line in caplog.messages if "FLASHINFER_MSA_LOCK_TIMEOUT" in line]
    assert str(machine.cache / "locks") in line
    assert finish(builder)["versions"] == [1]
    assert len(machine.entries()) == 1


def test_09_eight_cold_processes_compile_once(machine):
    machine.cuda.set(sleep=0.3)
    builders = [machine.start("0") for _ in range(8)]
    assert [finish(builder)["versions"] for builder in builders] == [[1]] * 8
    assert machine.cuda.compiles() == 1


def test_10_eight_cold_processes_without_a_lock_are_all_right(machine):
    machine.cuda.set(sleep=0.3)
    builders = [machine.start("0", before=NO_LOCK) for _ in range(8)]
    assert [finish(builder)["versions"] for builder in builders] == [[1]] * 8
    assert 1 <= machine.cuda.compiles() <= 8
    assert len(machine.entries()) == 1
    assert list((machine.cache / "staging").iterdir()) == []


def test_13_two_hosts_with_the_same_pids_share_no_file(machine):
    """Locks are local to a host there; the pid is the same, as in two containers."""
    same_pid = "import os; os.getpid = lambda: 7\n"
    machine.cuda.set(sleep=0.5)
    befores = [NO_LOCK + HOST.format(f"host{i}") + same_pid for i in range(2)]
    # The guard's parent check compares real pids, so it must be off with a made-up one.
    befores = [
        b + "from flashinfer_msa.jit import process; process._GUARD = GUARD\n" for b in befores
    ]
    guard = "GUARD = 'import os, sys; os.execv(sys.argv[2], sys.argv[2:])'\n"
    builders = [machine.start("0", before=guard + before) for before in befores]
    seen = set()
    while any(builder.poll() is None for builder in builders):
        seen |= {path.name for path in (machine.cache / "staging").glob("*")}
        time.sleep(0.01)
    assert [finish(builder)["versions"] for builder in builders] == [[1], [1]]
    assert {name.split("+")[1] for name in seen} == {"host0", "host1"}
    assert len(machine.entries()) == 1
