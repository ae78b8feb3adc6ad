# SPDX-License-Identifier: Apache-2.0
"""Damage is a miss that heals, and nothing half-made is ever visible. No GPU, no CUDA."""

import errno
import logging
import os
import shutil
import sys
from pathlib import Path

import pytest
from fake_cuda import DummySpec

from flashinfer_msa import jit
from flashinfer_msa.jit import entries, produce, roots


def rewrite(path: Path, data: bytes) -> None:
    """Replace a file; changing it in place would change it under this process's own mapping."""
    draft = path.with_name("draft")
    draft.write_bytes(data)
    draft.replace(path)


def shorten(path: Path) -> None:
    data = path.read_bytes()
    rewrite(path, data[: len(data) // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 128
    rewrite(path, data)


DAMAGE = {
    "shortened": shorten,
    "zeroed": lambda path: rewrite(path, bytes(path.stat().st_size)),
    "one bit": flip,
    "garbage": lambda path: rewrite(path, b"not a library"),
    "empty": lambda path: rewrite(path, b""),
    "missing": lambda path: path.unlink(),
    "directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["lib.so", "meta.json"])
def test_06_17_damage_is_a_miss_with_a_warning_and_heals(machine, caplog, damage, name):
    machine.load()
    DAMAGE[damage](machine.library().with_name(name))
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        assert machine.load().flashinfer_msa_abi_version() == 1
    assert "damaged cache entry" in caplog.text
    assert jit.find(DummySpec(), (9, 0)).path == machine.library()
    machine.load()
    assert machine.cuda.compiles() == 2


@pytest.mark.parametrize(
    "changes",
    [{"schema": 0}, {"schema": 99}, {"library": None}, {"created": "x"}, {"toolchain": {}}],
)
def test_17_manifest_of_another_schema_is_a_miss(machine, changes):
    machine.load()
    machine.edit_meta(**changes)
    machine.load()
    assert machine.cuda.compiles() == 2


def test_damage_that_cannot_be_replaced_moves_to_the_next_directory(machine):
    machine.load()
    shorten(machine.library())

    def fail(root, path):
        raise OSError(errno.EROFS, "read-only")

    machine.patch.setattr(entries, "move_aside", fail)
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert list((machine.folder / "tmp").glob("flashinfer_msa-*/v1/*/*"))


# Publishing


def test_07_final_path_appears_by_one_rename_and_is_never_written(machine):
    seen = []

    def audit(event, args):
        if event == "os.rename" and "v1" in Path(str(args[1])).parts:
            seen.append(("rename", str(args[1])))
        writes = event == "open" and (args[1] or "r").strip("bt") != "r"
        if writes and "v1" in Path(str(args[0])).parts:
            seen.append(("write", str(args[0])))

    sys.addaudithook(audit)
    machine.load()
    here = [(kind, path) for kind, path in seen if path.startswith(str(machine.cache))]
    assert here == [("rename", str(machine.entries()[0]))]


def test_47_staging_lies_on_the_file_system_of_the_cache(machine):
    real = os.rename

    def rename(source, target, **kwargs):
        if machine.cache not in Path(source).parents:
            raise OSError(errno.EXDEV, "cross-device", str(source))
        real(source, target, **kwargs)

    machine.patch.setattr(os, "rename", rename)
    machine.load()
    assert len(machine.entries()) == 1


def test_everything_is_on_disk_before_it_is_visible(machine):
    done = []
    real_sync, real_rename = os.fsync, os.rename
    link = "/proc/self/fd/{}"

    def fsync(descriptor):
        done.append(os.readlink(link.format(descriptor)))
        real_sync(descriptor)

    def rename(source, target, **kwargs):
        done.append(str(target))
        real_rename(source, target, **kwargs)

    machine.patch.setattr(os, "fsync", fsync)
    machine.patch.setattr(os, "rename", rename)
    machine.load()
    entry = machine.entries()[0]
    at = done.index(str(entry))
    synced = {Path(path).name for path in done[:at] if "/entry" in path}
    assert {path.name for path in entry.iterdir()} | {"entry"} <= synced
    assert str(entry.parent) in done[at:]


def test_14_winner_that_cannot_be_seen_is_replaced_by_the_own_copy(machine, caplog):
    machine.patch.setattr(produce, "publish", lambda *_: False)
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert "damaged" not in caplog.text
    assert list((machine.cache / "staging").iterdir()) == []


def test_rename_onto_a_winner_loads_the_winner(machine):
    real = produce.publish

    def late(root, staged, final):
        shutil.copytree(staged, final)
        return real(root, staged, final)

    machine.patch.setattr(produce, "publish", late)
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert len(machine.entries()) == 1


def test_15_failing_removal_of_the_staging_directory_does_not_matter(machine):
    def busy(*_, **__):
        raise OSError(errno.EBUSY, "busy")

    machine.patch.setattr(roots.shutil, "rmtree", busy)
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_16_same_pid_on_two_hosts_does_not_collide(machine):
    root = roots.Root(machine.cache)
    root.prepare()
    machine.patch.setattr(os, "getpid", lambda: 7)
    names = {root.new_staging("x").name for _ in range(3)}
    machine.patch.setattr(roots.socket, "gethostname", lambda: "elsewhere")
    names |= {root.new_staging("x").name for _ in range(3)}
    assert len(names) == 6
    assert {name.split("+")[2] for name in names} == {"7"}
