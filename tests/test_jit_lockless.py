# SPDX-License-Identifier: Apache-2.0
"""A lock that cannot be used, or only looks taken, stops nobody. No GPU, no CUDA."""

import errno
import logging
import os
import time

import filelock
import pytest
from fake_cuda import finish, started, wait_until

from flashinfer_msa.env import Settings
from flashinfer_msa.jit import lock, maintain

UNUSABLE = [errno.ESTALE, errno.ENOLCK, errno.ENOSYS, errno.EACCES, errno.EROFS, errno.ENOTSUP]


@pytest.mark.parametrize("number", UNUSABLE)
def test_12_lock_that_cannot_be_used_is_done_without(machine, number):
    def acquire(*_, **__):
        raise OSError(number, os.strerror(number))

    machine.patch.setattr(filelock.FileLock, "acquire", acquire)
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert machine.cuda.compiles() == 1


@pytest.mark.parametrize("error", [NotImplementedError("flock"), RuntimeError("deadlock")])
def test_12_lock_that_filelock_refuses_is_done_without(machine, error):
    def acquire(*_, **__):
        raise error

    machine.patch.setattr(filelock.FileLock, "acquire", acquire)
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_12_lock_that_only_looks_taken_is_waited_for_shortly(machine, caplog):
    """Old filelock reports an unsupported file system, and a stale existence lock, so."""

    def acquire(self, *_, **__):
        raise filelock.Timeout(str(self.lock_file))

    machine.patch.setattr(filelock.FileLock, "acquire", acquire)
    machine.patch.setattr(lock, "GHOST_PATIENCE", 0.2)
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        assert machine.load().flashinfer_msa_abi_version() == 1
    assert "by no living process" in caplog.text


NO_FLOCK = """
import fcntl
def flock(*_):
    raise OSError({number}, "flock does not work here")
fcntl.flock = flock
"""


@pytest.mark.filterwarnings("ignore::UserWarning")  # some versions announce their fallback
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ESTALE, errno.EIO])
def test_12_file_system_without_flock_does_not_matter(machine, number):
    """Below filelock, whose versions differ in what they make of it."""
    exec(NO_FLOCK.format(number=number), {})
    machine.patch.setattr(lock, "GHOST_PATIENCE", 0.2)
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert machine.cuda.compiles() == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_12_existence_lock_of_a_killed_builder_delays_nobody_for_long(machine):
    machine.cuda.set(sleep=60)
    no_flock = NO_FLOCK.format(number=errno.ENOSYS)
    builder = machine.start("0", before=no_flock)
    wait_until(lambda: started(machine))
    builder.kill()
    builder.communicate()
    machine.cuda.set(sleep=0)
    machine.patch.setattr(lock, "GHOST_PATIENCE", 0.2)
    exec(no_flock, {})
    began = time.monotonic()
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert time.monotonic() - began < 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_12_failing_release_does_not_matter(machine):
    def release(*_, **__):
        raise OSError(errno.ESTALE, "stale")

    machine.patch.setattr(filelock.FileLock, "release", release)
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_12_59_lock_in_use_is_never_deleted(machine):
    machine.cuda.set(sleep=1)
    builder = machine.start("0")
    wait_until(lambda: started(machine))
    (path,) = (machine.cache / "locks").glob("*.lock")
    inode = path.stat().st_ino
    maintain.clear(Settings.read())
    assert path.stat().st_ino == inode
    finish(builder)
    assert not list((machine.cache / "v1").rglob("*.lock"))
