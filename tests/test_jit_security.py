# SPDX-License-Identifier: Apache-2.0
"""The cache trusts nothing that another user could have written. No GPU, no CUDA."""

import logging
import os

import pytest
from fake_cuda import DummySpec, Machine

from flashinfer_msa import jit
from flashinfer_msa.jit import entries, roots
from flashinfer_msa.jit.errors import RootUnusableError


def levels(machine: Machine) -> dict[str, object]:
    entry = machine.entries()[0]
    return {
        "root": machine.cache,
        "layout": machine.cache / "v1",
        "arch": entry.parent,
        "entry": entry,
        "library": entry / "lib.so",
    }


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("level", ["root", "layout", "arch", "entry", "library"])
def test_what_others_can_write_is_not_loaded(machine, level, mode):
    machine.load()
    levels(machine)[level].chmod(mode)
    assert jit.find(DummySpec(), (9, 0)).source == "absent"
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    with pytest.raises(jit.MissingKernelError):
        machine.load()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give files away")
@pytest.mark.parametrize("level", ["root", "layout", "arch", "entry"])
def test_what_another_user_owns_is_not_loaded(machine, level):
    machine.load()
    os.chown(levels(machine)[level], 51001, 51001)
    assert jit.find(DummySpec(), (9, 0)).source == "absent"
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert machine.cuda.compiles() == 2


def test_owner_is_compared_with_the_effective_user(machine):
    machine.load()
    if os.getuid() == 0:
        os.chown(machine.cache, 51001, 51001)
    machine.patch.setattr(os, "geteuid", lambda: 51002)
    assert "belongs to uid" in roots.distrust(machine.cache)


def test_directory_that_others_can_write_is_not_built_into(machine, caplog):
    machine.cache.mkdir()
    machine.cache.chmod(0o777)
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        assert machine.load().flashinfer_msa_abi_version() == 1
    assert list(machine.cache.iterdir()) == []
    assert "chmod go-w" in caplog.text


@pytest.mark.parametrize("level", ["layout", "arch", "entry"])
def test_link_in_the_place_of_a_folder_is_not_followed(machine, level):
    machine.load()
    path = levels(machine)[level]
    path.rename(machine.folder / "elsewhere")
    path.symlink_to(machine.folder / "elsewhere")
    assert jit.find(DummySpec(), (9, 0)).source == "absent"


def test_cache_directory_itself_may_be_a_link(machine):
    machine.load()
    machine.cache.rename(machine.folder / "elsewhere")
    machine.cache.symlink_to(machine.folder / "elsewhere")
    assert jit.find(DummySpec(), (9, 0)).source == "cache"


def test_temporary_directory_must_be_sticky_if_all_can_write_it(machine):
    shared = machine.folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(RootUnusableError, match="sticky"):
        roots.Root(shared / "cache", private=True).prepare()
    shared.chmod(0o1777)
    roots.Root(shared / "cache", private=True).prepare()
    assert (shared / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_nothing_published_can_be_written_by_others_whatever_the_umask(machine, umask):
    previous = os.umask(umask)
    try:
        machine.load()
    finally:
        os.umask(previous)
    for path in [machine.cache, *machine.cache.rglob("*")]:
        assert path.stat().st_mode & 0o022 == 0, path
    assert jit.find(DummySpec(), (9, 0)).source == "cache"


def test_library_is_not_opened_before_its_hash_is_checked(machine):
    machine.load()
    library = machine.library()
    draft = library.with_name("draft")
    data = bytearray(library.read_bytes())
    data[-1] ^= 1
    draft.write_bytes(data)
    draft.replace(library)
    opened = []
    real = entries.open_library
    machine.patch.setattr(
        entries, "open_library", lambda path, abi: opened.append(path) or real(path, abi)
    )
    assert jit.find(DummySpec(), (9, 0)).source == "absent"
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    with pytest.raises(jit.MissingKernelError):
        machine.load()
    assert opened == []


def test_manifest_cannot_name_a_file(machine):
    """The library's name is fixed, so no path from a manifest is ever followed."""
    machine.load()
    machine.edit_meta(library={"file": "/etc/passwd", "size": 1, "sha256": "x"})
    assert jit.find(DummySpec(), (9, 0)).source == "absent"
