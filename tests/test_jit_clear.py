# SPDX-License-Identifier: Apache-2.0
"""Removing entries while others use them; many threads at once. No GPU, no CUDA."""

import errno
import os
import threading

from fake_cuda import DummySpec, finish

from flashinfer_msa import jit
from flashinfer_msa.env import Settings
from flashinfer_msa.jit import maintain, produce, roots


def test_59_clear_during_a_build_hurts_neither(machine):
    machine.load(DummySpec("old"))
    machine.cuda.set(sleep=1)
    builder = machine.start("new")
    while not list((machine.cache / "staging").glob("dummy_new*")):
        assert builder.poll() is None
    removal = maintain.clear(Settings.read())
    assert (removal.entries, removal.staging, removal.failures) == (1, 0, [])
    assert finish(builder)["versions"] == [1]
    assert len(machine.entries()) == 1


def test_59_library_in_use_survives_its_removal(machine):
    library = machine.load()
    maintain.clear(Settings.read())
    assert machine.entries() == []
    assert library.flashinfer_msa_abi_version() == 1
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_clear_removes_what_dead_builders_left_and_nothing_of_living_ones(machine):
    root = roots.Root(machine.cache)
    root.prepare()
    alive = root.new_staging("alive")
    dead = alive.with_name(alive.name.replace(f"+{os.getpid()}+", "+4194304+"))
    elsewhere = alive.with_name("x+otherhost+1+abc")
    dead.mkdir()
    elsewhere.mkdir()
    assert maintain.clear(Settings.read()).staging == 1
    assert alive.exists()
    assert elsewhere.exists()
    os.utime(elsewhere, (0, 0))
    assert maintain.clear(Settings.read()).staging == 1
    assert not elsewhere.exists()


def test_removal_that_fails_is_reported(machine):
    machine.load()

    def rename(*_, **__):
        raise OSError(errno.EROFS, "read-only file system")

    machine.patch.setattr(os, "rename", rename)
    removal = maintain.clear(Settings.read())
    assert removal.entries == 0
    assert len(removal.failures) == 1
    assert str(machine.entries()[0]) in removal.failures[0]


# Threads


def test_62_sixteen_threads_build_once_and_get_one_handle(machine):
    machine.cuda.set(sleep=0.2)
    barrier = threading.Barrier(16)
    handles = []

    def run():
        barrier.wait()
        handles.append(jit.load(DummySpec("threads"), (9, 0)))

    threads = [threading.Thread(target=run) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({id(handle) for handle in handles}) == 1
    assert len(handles) == 16
    assert machine.cuda.compiles() == 1


def test_62_failure_is_told_to_all_who_waited_and_not_repeated_for_each(machine):
    machine.cuda.set(sleep=1, fails="error: no luck")
    failures = []

    def run():
        try:
            jit.load(DummySpec("failing"), (9, 0))
        except jit.CompileError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(failures) == 8
    assert len(set(failures)) == 1
    assert machine.cuda.compiles() == 1


def test_different_kernels_build_side_by_side(machine):
    """Each build waits for the other's: were there one lock, neither would end."""
    machine.patch.setenv("MAX_JOBS", "1")
    barrier = threading.Barrier(2, timeout=20)
    real = produce.compile_library

    def meet(*arguments):
        barrier.wait()
        return real(*arguments)

    machine.patch.setattr(produce, "compile_library", meet)
    threads = [
        threading.Thread(target=jit.load, args=(DummySpec(tag), (9, 0))) for tag in ("p", "q")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(machine.entries()) == 2
