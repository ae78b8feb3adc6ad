# SPDX-License-Identifier: Apache-2.0
"""Finding the compilers, and telling which builds they are. No GPU, no CUDA."""

import importlib.machinery
import json
import os
import shutil
import subprocess

import pytest
from fake_cuda import FakeCuda

from flashinfer_msa import jit
from flashinfer_msa.env import Settings
from flashinfer_msa.jit import toolchain
from flashinfer_msa.jit.toolchain import find_toolchain


def nvcc_of(cuda: FakeCuda):
    return cuda.root / "bin" / "nvcc"


def hide_path(machine) -> None:
    """Leave the host compiler on PATH, and nothing else."""
    folder = machine.folder / "path"
    folder.mkdir()
    for name in ("gcc", "as", "ld"):
        (folder / name).symlink_to(os.path.realpath(shutil.which(name)))
    machine.patch.setenv("PATH", str(folder))


def test_places_are_looked_at_in_the_documented_order(machine):
    hide_path(machine)
    kits = {n: FakeCuda(machine.folder / n) for n in ("home", "path_var", "on_path", "root", "pip")}
    machine.patch.setenv("CUDA_HOME", str(kits["home"].root))
    machine.patch.setenv("CUDA_PATH", str(kits["path_var"].root))
    machine.patch.setenv("PATH", f"{os.environ['PATH']}:{kits['on_path'].root / 'bin'}")
    machine.patch.setattr(toolchain, "DEFAULT_ROOT", kits["root"].root)
    machine.patch.setattr(toolchain, "_pip_toolkits", lambda: [kits["pip"].root])
    found = []
    for name in ("home", "path_var", "on_path", "root", "pip"):
        found.append(find_toolchain(Settings.read()).nvcc == nvcc_of(kits[name]))
        shutil.rmtree(kits[name].root)
        machine.patch.delenv({"home": "CUDA_HOME", "path_var": "CUDA_PATH"}.get(name, "X"), False)
    assert found == [True] * 5


@pytest.mark.parametrize("value", ["", "  "])
def test_26_empty_variable_counts_as_unset(machine, value):
    machine.patch.setenv("CUDA_PATH", str(machine.cuda.root))
    machine.patch.setenv("CUDA_HOME", value)
    assert find_toolchain(Settings.read()).origin.startswith("CUDA_PATH")


@pytest.mark.parametrize("value", [":{0}", "{0}:", "{0}/nowhere", "/nonexistent", "{0}/bin"])
@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_26_bad_variable_is_rejected_with_its_value_before_anything_runs(machine, name, value):
    machine.patch.delenv("CUDA_HOME")
    value = value.format(machine.cuda.root)
    machine.patch.setenv(name, value)
    with pytest.raises(jit.ToolchainError, match="correct or unset it") as error:
        machine.load()
    assert f"{name}={value!r}" in str(error.value)
    assert machine.cuda.calls() == []


def test_26_bad_variable_does_not_spoil_a_hit(machine):
    machine.load()
    machine.patch.setenv("CUDA_HOME", "/nonexistent")
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_25_missing_nvcc_is_an_error_that_says_where_it_looked_and_what_to_do(machine):
    hide_path(machine)
    machine.patch.delenv("CUDA_HOME")
    machine.patch.setattr(toolchain, "_pip_toolkits", lambda: [])
    with pytest.raises(jit.ToolchainError) as error:
        machine.load()
    for words in ("PATH", str(toolchain.DEFAULT_ROOT), "pip packages", "CUDA_HOME",
                  "flashinfer-msa[nvcc]", "flashinfer-msa-aot"):  # fmt: skip
        assert words in str(error.value)


def test_25_missing_host_compiler_is_told(machine):
    machine.patch.setenv("PATH", "/nowhere")
    with pytest.raises(jit.ToolchainError, match=r"host compiler 'gcc'.*NVCC_CCBIN"):
        machine.load()


def test_host_compiler_given_by_flag_is_not_looked_for(machine):
    machine.patch.setenv("NVCC_PREPEND_FLAGS", "-ccbin=/opt/cc")
    assert find_toolchain(Settings.read()).host is None


def test_51_nvcc_that_fails_to_tell_its_version_is_an_error_with_its_words(machine):
    machine.cuda.set(version_fails=True)
    with pytest.raises(jit.ToolchainError, match="no version today"):
        machine.load()
    machine.cuda.set(version_fails=False)
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_51_nvcc_that_cannot_be_run_keeps_its_cause(machine):
    nvcc_of(machine.cuda).write_text("#!/no/such/interpreter\n")
    with pytest.raises(jit.ToolchainError, match="cannot run") as error:
        machine.load()
    assert isinstance(error.value.__cause__, OSError)


def test_51_cached_kernel_needs_no_working_nvcc(machine):
    machine.load()
    nvcc_of(machine.cuda).write_text("#!/no/such/interpreter\n")
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_version_file_saves_running_nvcc(machine):
    version = {"cuda_nvcc": {"name": "CUDA NVCC", "version": "12.4.131"}}
    (machine.cuda.root / "version.json").write_text(json.dumps(version))
    found = find_toolchain(Settings.read())
    assert found.identity["nvcc"] == "nvcc 12.4.131"
    assert found.release == "12.4.131"
    assert machine.cuda.calls() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cuda_nvcc": 1}', '{"cuda": {"version": "1"}}'])
def test_bad_version_file_is_ignored(machine, text):
    (machine.cuda.root / "version.json").write_text(text)
    assert find_toolchain(Settings.read()).release == "13.0.88"


def test_version_is_asked_once_for_one_file(machine):
    for _ in range(3):
        find_toolchain(Settings.read()).identity  # noqa: B018
    assert len(machine.cuda.calls("--version")) == 1


def test_link_to_nvcc_leads_to_its_toolkit(machine):
    folder = machine.folder / "links"
    folder.mkdir()
    (folder / "nvcc").symlink_to(nvcc_of(machine.cuda))
    machine.patch.delenv("CUDA_HOME")
    machine.patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert find_toolchain(Settings.read()).nvcc == nvcc_of(machine.cuda)


def test_link_to_a_compiler_launcher_is_not_followed(machine):
    folder = machine.folder / "links"
    folder.mkdir()
    launcher = folder / "launcher"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    (folder / "nvcc").symlink_to(launcher)
    machine.patch.delenv("CUDA_HOME")
    machine.patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert find_toolchain(Settings.read()).nvcc == folder / "nvcc"


def fake_packages(machine, *roots) -> None:
    spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(machine.folder / "site" / "nvidia")]
    machine.patch.setattr(toolchain.importlib.util, "find_spec", lambda name: spec)
    hide_path(machine)
    machine.patch.delenv("CUDA_HOME")


def test_27_pip_packages_are_found_newest_first(machine):
    site = machine.folder / "site" / "nvidia"
    FakeCuda(site / "cu12")
    newest = FakeCuda(site / "cu13")
    fake_packages(machine)
    assert find_toolchain(Settings.read()).nvcc == nvcc_of(newest)


def test_27_runtime_in_a_package_of_its_own_is_passed_to_nvcc(machine):
    site = machine.folder / "site" / "nvidia"
    cuda = FakeCuda(site / "cuda_nvcc")
    (site / "cuda_runtime" / "include").mkdir(parents=True)
    (site / "cuda_runtime" / "include" / "only_here.h").write_text("")
    (site / "cuda_runtime" / "lib").mkdir()
    machine.data.joinpath("include/flashinfer_msa/dummy.cuh").write_text('#include "only_here.h"\n')
    fake_packages(machine)
    assert machine.load().flashinfer_msa_abi_version() == 1
    (link,) = cuda.calls("-shared")
    assert "-Llibrary0" in link


def test_38_looking_for_a_compiler_starts_no_process(machine):
    def started(*_, **__):
        raise AssertionError("a process was started")

    machine.patch.setattr(subprocess, "Popen", started)
    found = find_toolchain(Settings.read())
    assert found.stamp()[0][0] == str(nvcc_of(machine.cuda))
