# SPDX-License-Identifier: Apache-2.0
"""Cache directories that cannot be used give way to the next. No GPU, no CUDA."""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cuda import TESTS, DummySpec, FakeCuda, make_data, python_path

from flashinfer_msa import jit
from flashinfer_msa.env import Settings
from flashinfer_msa.jit import produce, roots
from flashinfer_msa.jit.errors import RootUnusableError


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


PLACES = [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EPERM]


@pytest.mark.parametrize("number", PLACES)
def test_43_directory_that_cannot_be_written_gives_way_with_one_warning(machine, caplog, number):
    real = roots.Root.new_staging

    def new_staging(self, stem):
        if self.path == machine.cache:
            raise OSError(number, os.strerror(number), str(self.path))
        return real(self, stem)

    machine.patch.setattr(roots.Root, "new_staging", new_staging)
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        machine.load(DummySpec("a"))
        machine.load(DummySpec("b"))
    assert [os.strerror(number) in line for line in warnings(caplog)] == [True]
    fallback = machine.folder / "tmp" / f"flashinfer_msa-{os.getuid()}"
    assert len(list(fallback.glob("v1/*/*"))) == 2
    assert fallback.stat().st_mode & 0o777 == 0o700


def test_43_full_disk_during_the_compilation_gives_way(machine):
    real = produce.compile_library

    def full(folder, *rest):
        if machine.cache in folder.parents:
            raise RootUnusableError(f"{machine.cache}: no space left")
        return real(folder, *rest)

    machine.patch.setattr(produce, "compile_library", full)
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_43_compiler_that_says_no_space_means_the_directory(machine):
    machine.cuda.set(fails="fatal error: error writing to x.o: No space left on device")
    with pytest.raises(
        jit.MissingKernelError, match=r"cache: no space left.*FLASHINFER_MSA_CACHE_DIR"
    ):
        machine.load()


def test_43_no_directory_at_all_is_an_error_that_lists_them(machine):
    machine.patch.setattr(roots.Root, "prepare", refuse)
    with pytest.raises(jit.MissingKernelError, match="FLASHINFER_MSA_CACHE_DIR") as error:
        machine.load()
    assert str(machine.cache) in str(error.value)
    assert str(machine.folder / "tmp") in str(error.value)


def refuse(root: roots.Root) -> None:
    raise RootUnusableError(f"{root.path}: never")


def test_43_read_only_cache_serves_hits(machine):
    machine.load()
    for name in ("mkdir", "rename", "remove", "unlink", "rmdir", "chmod", "replace"):
        machine.patch.setattr(os, name, fail_read_only)
    assert machine.load().flashinfer_msa_abi_version() == 1


def fail_read_only(*_, **__):
    raise OSError(errno.EROFS, "read-only file system")


def test_46_noexec_mount_is_passed_over_and_named(machine, caplog):
    machine.load()
    real = os.statvfs

    def statvfs(path):
        no_exec = os.ST_NOEXEC if Path(path) == machine.cache else 0
        return SimpleNamespace(f_flag=real(path).f_flag | no_exec)

    machine.patch.setattr(os, "statvfs", statvfs)
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        assert machine.load().flashinfer_msa_abi_version() == 1
    assert any("noexec" in line and str(machine.cache) in line for line in warnings(caplog))


def test_44_no_home_and_no_passwd_entry(machine):
    machine.patch.delenv("FLASHINFER_MSA_CACHE_DIR")
    machine.patch.setattr(Path, "home", no_home)
    found = [root.path for root in roots.candidate_roots(Settings.read())]
    assert found == [machine.folder / "tmp" / f"flashinfer_msa-{os.getuid()}"]
    assert machine.load().flashinfer_msa_abi_version() == 1


@pytest.mark.parametrize("home", ["missing", "file"])
def test_43_missing_home_is_not_created(machine, home):
    machine.patch.delenv("FLASHINFER_MSA_CACHE_DIR")
    path = machine.folder / home
    if home == "file":
        path.write_text("")
    machine.patch.setenv("HOME", str(path))
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert not path.is_dir()
    assert list((machine.folder / "tmp").glob("flashinfer_msa-*/v1/*/*"))


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_default_directory_follows_xdg_then_home(machine):
    machine.patch.delenv("FLASHINFER_MSA_CACHE_DIR")
    (machine.folder / "home").mkdir()
    home = next(roots.candidate_roots(Settings.read())).path
    assert home == machine.folder / "home" / ".cache" / "flashinfer_msa"
    machine.patch.setenv("XDG_CACHE_HOME", str(machine.folder / "xdg"))
    assert (
        next(roots.candidate_roots(Settings.read())).path == machine.folder / "xdg/flashinfer_msa"
    )
    machine.patch.setenv("XDG_CACHE_HOME", "relative")
    assert next(roots.candidate_roots(Settings.read())).path == home


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become other users")
@pytest.mark.parametrize("umask", ["022", "002", "077"])
def test_45_second_user_of_a_cache_never_fails(machine, umask):
    """44 too: neither uid has a passwd entry, and the directory is named by uid."""
    shared = Path(tempfile.mkdtemp(prefix="flashinfer_msa_test-"))
    try:
        shared.chmod(0o1777)
        make_data(shared / "data")
        cuda = FakeCuda(shared / "cuda")
        (cuda.root / "calls.log").touch()
        (cuda.root / "calls.log").chmod(0o666)
        (shared / "tmp").mkdir()
        (shared / "tmp").chmod(0o1777)
        users = [run_as(uid, shared, umask) for uid in (51001, 51002)]
        assert users == [[1], [1]]
        assert (shared / "cache").stat().st_uid == 51001
    finally:
        shutil.rmtree(shared)


def run_as(uid: int, shared: Path, umask: str) -> list[int]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_HOME": str(shared / "cuda"),
        "FLASHINFER_MSA_CACHE_DIR": str(shared / "cache"),
        "TMPDIR": str(shared / "tmp"),
    }
    program = [sys.executable, str(TESTS / "fake_cuda.py"), str(shared / "data"), "", "0"]
    try:
        subprocess.run([sys.executable, "-c", "import ninja, filelock"], user=uid, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this Python cannot be run by other users")
    done = subprocess.run(
        program,
        env=environment,
        user=uid,
        group=uid,
        extra_groups=[],
        umask=int(umask, 8),
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["versions"]
