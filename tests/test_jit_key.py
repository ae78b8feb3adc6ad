# SPDX-License-Identifier: Apache-2.0
"""What makes a hit, and what makes a miss. No GPU, no CUDA."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from fake_cuda import DummySpec, FakeCuda

from flashinfer_msa import jit
from flashinfer_msa.env import Settings
from flashinfer_msa.jit.aot import source_hash

# A hit


def test_hit_starts_no_process_takes_no_lock_and_writes_nothing(machine):
    machine.load()
    before = snapshot(machine.folder)
    events = []
    watching = True

    def audit(event, args):
        writes = event == "open" and (args[1] or "r").strip("bt") != "r"
        if watching and (writes or event in FORBIDDEN):
            events.append((event, args))

    sys.addaudithook(audit)
    machine.load()
    watching = False
    assert events == []
    assert snapshot(machine.folder) == before


FORBIDDEN = {
    "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork", "os.mkdir",
    "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.utime",
    "os.truncate", "fcntl.flock", "fcntl.lockf", "socket.connect", "shutil.rmtree",
}  # fmt: skip


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    paths = [p for p in folder.rglob("*") if not p.is_symlink()]
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in paths}


def test_23_hit_needs_no_compiler_ninja_or_toolkit(machine):
    machine.load()
    machine.hide_tools()
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_repeated_call_returns_the_same_handle_and_looks_at_nothing(machine):
    library = machine.load()
    shutil.rmtree(machine.cache)
    shutil.rmtree(machine.cuda.root)
    machine.patch.setattr(Settings, "read", None)
    assert jit.load(DummySpec(), (9, 0)) is library


def test_19_touched_sources_moved_roots_and_copied_cache_are_hits(machine):
    machine.load()
    count = machine.cuda.compiles()
    for path in machine.data.rglob("*"):
        os.utime(path, (1e9, 1e9))
    link = machine.folder / "link"
    link.symlink_to(machine.cuda.root)
    machine.patch.setenv("CUDA_HOME", str(link))
    machine.load()
    moved = machine.folder / "moved"
    shutil.copytree(machine.data, moved)
    machine.data = moved
    machine.load()
    copied = machine.folder / "copied"
    shutil.copytree(machine.cache, copied)
    machine.patch.setenv("FLASHINFER_MSA_CACHE_DIR", str(copied))
    machine.load()
    twin = FakeCuda(machine.folder / "twin")
    machine.patch.setenv("CUDA_HOME", str(twin.root))
    machine.load()
    assert machine.cuda.compiles() == count
    assert twin.compiles() == 0


def test_63_no_decision_reads_a_time(machine):
    machine.load()
    for time in (0, 4e9):
        for path in [*machine.cache.rglob("*"), *machine.data.rglob("*")]:
            os.utime(path, (time, time))
        machine.load()
    assert machine.cuda.compiles() == 1


def test_40_alternating_architectures_are_built_once_each(machine):
    for _ in range(3):
        for capability in ((8, 0), (9, 0)):
            machine.load(capability=capability)
    assert machine.cuda.compiles() == 2
    assert {p.parent.name.split("-")[0] for p in machine.entries()} == {"sm80", "sm90"}


def test_40_another_kind_of_machine_has_its_own_folder(machine):
    machine.load()
    uname = os.uname()
    other = type(uname)((*uname[:4], "riscv64"))
    machine.patch.setattr(os, "uname", lambda: other)
    assert jit.find(DummySpec(), (9, 0)).source == "absent"


# A miss


def test_18_one_changed_header_byte_is_a_miss_whatever_its_time(machine):
    machine.load()
    header = machine.data / "include" / "flashinfer_msa" / "dummy.cuh"
    header.write_text(header.read_text().replace("1", "2"))
    os.utime(header, (315532800, 315532800))
    machine.load()
    assert machine.cuda.compiles() == 2
    assert len(machine.entries()) == 2


def test_page_beside_the_headers_is_no_part_of_a_kernel(machine):
    machine.load()
    before = source_hash()
    (machine.data / "include" / "README.md").write_text("How the kernels work.\n")
    machine.load()
    assert machine.cuda.compiles() == 1
    assert source_hash() == before


def test_new_or_renamed_header_is_a_miss(machine):
    machine.load()
    folder = machine.data / "include" / "flashinfer_msa"
    (folder / "new.cuh").write_text("")
    machine.load()
    (folder / "new.cuh").rename(folder / "newer.cuh")
    machine.load()
    assert machine.cuda.compiles() == 3


def test_flags_source_and_abi_are_part_of_the_key(machine):
    machine.load()
    machine.load(DummySpec(body="/* x */"))
    machine.load(DummySpec(abi=2))
    machine.patch.setenv("FLASHINFER_MSA_EXTRA_NVCC_FLAGS", "-lineinfo")
    machine.load()
    machine.patch.setenv("NVCC_APPEND_FLAGS", "-DX")
    machine.load()
    assert len(machine.entries()) == 5


def test_20_another_nvcc_is_a_miss_and_the_old_entry_stays(machine):
    machine.load()
    other = FakeCuda(machine.folder / "other", version="13.1.2")
    machine.patch.setenv("CUDA_HOME", str(other.root))
    machine.load()
    assert other.compiles() == 1
    machine.patch.setenv("CUDA_HOME", str(machine.cuda.root))
    machine.load()
    assert machine.cuda.compiles() == 1
    assert len(machine.entries()) == 2


def test_20_nvcc_replaced_in_place_is_noticed(machine):
    machine.load()
    machine.cuda.set(version="13.1.2")
    nvcc = machine.cuda.root / "bin" / "nvcc"
    nvcc.write_text(nvcc.read_text() + "\n# updated\n")
    machine.load()
    assert machine.cuda.compiles() == 2


def test_another_host_compiler_is_a_miss(machine):
    machine.load()
    fake = machine.folder / "gcc"
    fake.write_text("#!/bin/sh\necho another compiler\n")
    fake.chmod(0o755)
    machine.patch.setenv("NVCC_CCBIN", str(fake))
    machine.load()
    assert machine.cuda.compiles() == 2


def test_without_compiler_the_newest_entry_of_the_same_source_is_taken(machine):
    machine.load()
    other = FakeCuda(machine.folder / "other", version="13.1.2")
    machine.patch.setenv("CUDA_HOME", str(other.root))
    machine.load()
    newest = max(
        machine.entries(), key=lambda p: json.loads((p / "meta.json").read_text())["created"]
    )
    machine.hide_tools()
    assert jit.find(DummySpec(), (9, 0)).path == newest / "lib.so"


def test_disabled_jit_takes_a_cached_kernel_and_says_where_it_looked_otherwise(machine):
    machine.load()
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    assert machine.load().flashinfer_msa_abi_version() == 1
    with pytest.raises(jit.MissingKernelError, match="flashinfer-msa-aot") as error:
        machine.load(DummySpec("new"))
    assert str(machine.cache) in str(error.value)


def test_disabled_jit_takes_the_entry_of_another_compiler(machine):
    machine.load()
    other = FakeCuda(machine.folder / "other", version="13.1.2")
    machine.patch.setenv("CUDA_HOME", str(other.root))
    assert jit.find(DummySpec(), (9, 0)).source == "absent"
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_a_spec_that_offers_its_inputs_is_rendered_only_to_build(machine):
    class Lazy(DummySpec):
        rendered = 0

        def inputs(self):
            return {"template": self.body}

        def sources(self):
            Lazy.rendered += 1
            return super().sources()

    machine.load(Lazy("lazy"))
    assert Lazy.rendered == 1
    machine.load(Lazy("lazy"))
    assert Lazy.rendered == 1
    machine.load(Lazy("lazy", body="/* x */"))
    assert Lazy.rendered == 2
