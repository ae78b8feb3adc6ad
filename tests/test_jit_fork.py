# SPDX-License-Identifier: Apache-2.0
"""Who holds a lock: forks, nesting, and holders that are gone. No GPU, no CUDA."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_cuda import DummySpec, python_path, started, wait_until

from flashinfer_msa import jit
from flashinfer_msa.jit import lock


def record(path: Path, **changes) -> None:
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": lock._start_time(os.getpid()),
    }
    path.with_name(path.name + ".holder").write_text(json.dumps(holder | changes))


def test_holder_on_record_counts_only_while_it_lives(tmp_path):
    path = tmp_path / "x.lock"
    assert lock.read_holder(path) is None
    record(path)
    assert lock.read_holder(path)["pid"] == os.getpid()
    record(path, start="1")  # the pid is in use again
    assert lock.read_holder(path) is None
    record(path, pid=4194304)
    assert lock.read_holder(path) is None
    record(path, host="elsewhere", pid=4194304)
    assert lock.read_holder(path)["host"] == "elsewhere"
    record(path, pid="x")
    assert lock.read_holder(path) is None
    path.with_name("x.lock.holder").write_text("[]")
    assert lock.read_holder(path) is None


TRY = """
import sys
from pathlib import Path
from flashinfer_msa.env import Settings
from flashinfer_msa.jit import lock, maintain
lock.GHOST_PATIENCE = 0.1
with lock.hold(Path(sys.argv[1]), 0) as held:
    print(held)
"""


def contender_gets(path: Path) -> bool:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", TRY, str(path)]
    return subprocess.check_output(command, env=environment, text=True).strip() == "True"


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "sys.exit(0)", "del lock; gc.collect(); sys.exit(0)"]
)
def test_48_forked_child_does_not_drop_its_parents_lock(tmp_path, end):
    path = tmp_path / "x.lock"
    parent = f"""
import gc, os, sys
from pathlib import Path
from flashinfer_msa.env import Settings
from flashinfer_msa.jit import lock, maintain
with lock.hold(Path({str(path)!r}), 5) as held:
    assert held
    if os.fork() == 0:
        {end}
    os.wait()
    print("ready", flush=True)
    sys.stdin.read()
"""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "ignore", "-c", parent]
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert not contender_gets(path)
        process.stdin.close()
    assert contender_gets(path)


def test_48_child_forked_during_a_build_can_build_itself(machine):
    machine.cuda.set(sleep=0.5)
    thread = threading.Thread(target=machine.load)
    thread.start()
    wait_until(lambda: started(machine))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            code = jit.load(DummySpec(), (9, 0)).flashinfer_msa_abi_version() - 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    thread.join(20)
    assert machine.cuda.compiles() == 1


def test_49_nested_lock_of_one_thread_does_not_hang(tmp_path):
    path = tmp_path / "x.lock"
    began = time.monotonic()
    with lock.hold(path, 60) as outer, lock.hold(path, 60) as inner:
        assert outer
        assert inner
    assert time.monotonic() - began < 30
    assert contender_gets(path)


def test_49_lock_is_kept_until_the_outer_block_ends(tmp_path):
    path = tmp_path / "x.lock"
    with lock.hold(path, 5):
        with lock.hold(path, 5):
            pass
        assert not contender_gets(path)


def test_49_load_within_a_load_does_not_hang(machine):
    class Nested(DummySpec):
        depth = 0

        def sources(self):
            Nested.depth += 1
            if Nested.depth == 1:
                jit.load(self, (9, 0))
            return super().sources()

    machine.patch.setattr(lock, "GHOST_PATIENCE", 0.2)
    assert machine.load(Nested("nested")).flashinfer_msa_abi_version() == 1


def test_05_two_capabilities_with_one_target_build_once(machine):
    """Two threads, two keys, one lock path."""
    machine.patch.setenv("FLASHINFER_MSA_ARCH_LIST", "8.0")
    machine.cuda.set(sleep=0.2)
    threads = [
        threading.Thread(target=jit.load, args=(DummySpec("two"), capability))
        for capability in ((8, 6), (8, 9))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert machine.cuda.compiles() == 1
