# SPDX-License-Identifier: Apache-2.0
"""Prebuilt kernels: used when they are of our sources, ignored otherwise. No GPU, no CUDA."""

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import DummySpec, Machine

from flashinfer_msa import env, jit
from flashinfer_msa.jit import aot


class Wheel:
    """An installed wheel with one kernel, made of what the fake toolkit builds."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.package = machine.folder / "site" / "flashinfer_msa_aot"
        (self.package / "kernels").mkdir(parents=True)
        (self.package / "__init__.py").write_text("raise RuntimeError('imported')\n")
        target = jit.Target(((8, 0), (9, 0)), (9, 0))
        library = self.package / "kernels" / "dummy_0.so"
        shutil.copy(jit.build(DummySpec(), target), library)
        shutil.rmtree(machine.cache)
        self.artifact = aot.describe_artifact(library, "kernels/dummy_0.so", target)
        self.manifest = aot.describe_wheel("13.0.88", {"dummy_0": self.artifact})
        self.manifest["package_version"] = "9.9.9"
        self.write()
        machine.patch.syspath_prepend(str(self.package.parent))
        machine.hide_tools()

    def write(self, **changes: Any) -> None:
        (self.package / "manifest.json").write_text(json.dumps(self.manifest | changes))


@pytest.fixture
def wheel(machine) -> Wheel:
    return Wheel(machine)


def test_23_prebuilt_kernel_needs_no_tool_and_is_not_imported(machine, wheel):
    assert machine.load().flashinfer_msa_abi_version() == 1
    assert jit.find(DummySpec(), (9, 0)).source == "aot"
    assert aot.MODULE not in sys.modules


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 1)])
def test_38_every_gpu_that_the_wheel_serves_takes_it(machine, wheel, capability):
    assert machine.load(capability=capability).flashinfer_msa_abi_version() == 1


def test_38_gpu_that_the_wheel_does_not_serve_is_built_for(machine, wheel):
    wheel.artifact["arch"] = ["sm90"]
    wheel.write()
    assert jit.find(DummySpec(), (8, 0)).source == "absent"


def test_42_prebuilt_kernel_writes_nothing(machine, wheel):
    before = sorted(machine.folder.rglob("*"))
    machine.load()
    assert sorted(machine.folder.rglob("*")) == before
    assert not machine.cache.exists()


def test_prebuilt_kernel_is_used_with_jit_disabled(machine, wheel):
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_11_wheel_of_other_sources_is_ignored_with_one_warning_naming_both(machine, wheel, caplog):
    wheel.write(source_hash="0" * 64)
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        for _ in range(2):
            with pytest.raises(jit.MissingKernelError):
                machine.load()
    (line,) = caplog.messages
    assert "flashinfer-msa-aot 9.9.9" in line
    assert f"flashinfer-msa {env.package_version()}" in line


@pytest.mark.parametrize("folder", ["include/flashinfer_msa", "templates"])
def test_11_one_edited_source_makes_the_wheel_a_mismatch(machine, wheel, folder):
    assert not aot.find_wheel().mismatch
    path = next((machine.data / folder).iterdir())
    path.write_text(path.read_text() + "\n")
    assert aot.find_wheel().mismatch


def test_source_hash_depends_on_no_path_and_no_time(machine):
    before = aot.source_hash()
    moved = machine.folder / "elsewhere"
    shutil.copytree(machine.data, moved)
    os.utime(moved / "templates" / "dummy.cu.jinja", (0, 0))
    machine.data = moved
    assert aot.source_hash() == before


@pytest.mark.parametrize("changes", [{"schema": 2}, {"machine": "riscv64"}, {"artifacts": []}])
def test_11_wheel_for_another_machine_or_schema_is_ignored(machine, wheel, changes):
    wheel.write(**changes)
    assert aot.find_wheel().mismatch
    assert jit.find(DummySpec(), (9, 0)).source == "absent"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_17_unreadable_manifest_is_ignored(machine, wheel, text):
    (wheel.package / "manifest.json").write_text(text)
    assert aot.find_wheel().mismatch
    assert jit.find(DummySpec(), (9, 0)).source == "absent"


def test_missing_manifest_is_ignored(machine, wheel):
    (wheel.package / "manifest.json").unlink()
    assert jit.find(DummySpec(), (9, 0)).source == "absent"


@pytest.mark.parametrize(
    "change",
    [{"size": 1}, {"sha256": "0" * 64}, {"file": "kernels/none.so"}, {"arch": ["x"]}, {"file": 3}],
)
def test_06_artifact_that_is_not_as_promised_is_never_loaded(machine, wheel, change):
    wheel.artifact |= change
    wheel.write()
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    with pytest.raises(jit.MissingKernelError):
        machine.load()


@pytest.mark.parametrize("outside", ["../outside.so", "{0}/site/outside.so", "kernels/link.so"])
def test_security_file_outside_of_the_wheel_is_never_loaded(machine, wheel, outside):
    target = wheel.package.parent / "outside.so"
    shutil.move(wheel.package / "kernels" / "dummy_0.so", target)
    (wheel.package / "kernels" / "link.so").symlink_to(target)
    wheel.artifact["file"] = outside.format(machine.folder)
    wheel.write()
    assert jit.find(DummySpec(), (9, 0)).source == "absent"
    machine.patch.setenv("FLASHINFER_MSA_DISABLE_JIT", "1")
    with pytest.raises(jit.MissingKernelError):
        machine.load()


def test_41_read_only_package_and_wheel_are_never_written(machine, wheel):
    for path in (wheel.package, machine.data):
        for folder in [path, *(p for p in path.rglob("*") if p.is_dir())]:
            folder.chmod(0o555)
    before = {p: p.stat().st_mtime_ns for p in Path(machine.folder).rglob("*")}
    machine.load()
    assert {p: p.stat().st_mtime_ns for p in Path(machine.folder).rglob("*")} == before
    for path in (wheel.package, machine.data):
        for folder in [path, *(p for p in path.rglob("*") if p.is_dir())]:
            folder.chmod(0o755)
