# SPDX-License-Identifier: Apache-2.0
"""The few promises of a build that only a real nvcc can prove. No GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda import DummySpec, Machine, python_path

from flashinfer_msa import jit
from flashinfer_msa.env import Settings
from flashinfer_msa.jit import elf
from flashinfer_msa.jit.toolchain import find_toolchain

KERNEL = """
#include <cuda_runtime.h>
#include <flashinfer_msa/dummy.cuh>
void launch_other(int*, cudaStream_t);
__global__ void fill(int* out) { out[threadIdx.x] = DUMMY; }
extern "C" __attribute__((visibility("default"))) int flashinfer_msa_abi_version() { return 1; }
extern "C" __attribute__((visibility("default"))) int run(int* out, void* stream) {
  fill<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>(out);
  launch_other(out, static_cast<cudaStream_t>(stream));
  return cudaGetLastError();
}
"""
OTHER = """
#include <cuda_runtime.h>
__global__ void other(int* out) { out[threadIdx.x] += 1; }
void launch_other(int* out, cudaStream_t stream) { other<<<1, 32, 0, stream>>>(out); }
"""


class CudaSpec(DummySpec):
    """Two translation units that call each other."""

    def sources(self):
        return {"a.cu": KERNEL + self.body, "b.cu": OTHER}


pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Return one cache for all tests, so that what several look at is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def machine(tmp_path, monkeypatch, cache) -> Machine:
    found = find_toolchain(Settings.read())
    machine = Machine(tmp_path, monkeypatch)
    machine.cache = cache
    monkeypatch.setenv("FLASHINFER_MSA_CACHE_DIR", str(cache))
    monkeypatch.setenv("CUDA_HOME", str(found.root))
    if not (found.root / "nvvm").is_dir():  # a wrapper on PATH
        monkeypatch.delenv("CUDA_HOME")
    return machine


def symbols(library: Path, kind: str) -> list[str]:
    command = ["nm", "-D", f"--{kind}-only", str(library)]
    return [line.split()[-1] for line in subprocess.check_output(command, text=True).splitlines()]


def test_21_22_library_needs_libc_alone_and_exports_only_its_interface(machine):
    target = jit.Target(((8, 0), (9, 0)), (9, 0))
    library = jit.build(CudaSpec(), target)
    needed = subprocess.check_output(["readelf", "-dW", str(library)], text=True)
    names = set(re.findall(r"NEEDED.*\[(.+)\]", needed))
    assert not any(re.match("lib(cuda|torch|c10|python|nv)", name) for name in names)
    undefined = symbols(library, "undefined")
    assert not [s for s in undefined if re.match(r"(Py|_Py|_ZN(2at|3c10|5torch)|cu[A-Z]|cuda)", s)]
    assert set(symbols(library, "defined")) == {"flashinfer_msa_abi_version", "run"}
    assert elf.embedded_codes(elf.read_sections(library.read_bytes())) == set(target.codes)
    if find_toolchain(Settings.read()).has_static_libstdcxx:
        assert not any(name.startswith(("libstdc++", "libgcc")) for name in names)


@pytest.mark.parametrize("text", ["compute_80", "9.0a"])
def test_38_39_target_is_exactly_what_is_inside(machine, text):
    target = jit.Target.parse(text)
    library = jit.build(CudaSpec(), target)
    inside = elf.embedded_codes(elf.read_sections(library.read_bytes()))
    assert inside == {code.removesuffix("a") for code in target.codes}


def test_30_real_toolkit_below_an_odd_path(machine):
    root = find_toolchain(Settings.read()).root
    if not (root / "nvvm").is_dir():
        root = Path("/usr/local/cuda")
    if not (root / "nvvm").is_dir():
        pytest.skip("the toolkit's root is hidden by a wrapper")
    odd = machine.folder / "o d$HOME:q'u\"é;&"
    odd.symlink_to(root.resolve())
    machine.patch.setenv("CUDA_HOME", str(odd))
    machine.patch.setenv("FLASHINFER_MSA_CACHE_DIR", str(machine.folder / "c a$HOME:c'h\"é"))
    temporary = machine.folder / "t m$HOME:p'é"
    temporary.mkdir()
    machine.patch.setenv("TMPDIR", str(temporary))
    data = machine.folder / "d a$HOME:t'a"
    machine.data.rename(data)
    machine.data = data
    assert machine.load(CudaSpec()).flashinfer_msa_abi_version() == 1
    assert list(temporary.iterdir()) == []


def test_equal_input_gives_equal_bytes(machine):
    """In different cache directories: no path and no time gets into a library."""
    built = []
    for path in (machine.cache, machine.folder / "another, longer one"):
        machine.patch.setenv("FLASHINFER_MSA_CACHE_DIR", str(path))
        built.append(jit.build(CudaSpec(), jit.Target(((9, 0),))).read_bytes())
    assert built[0] == built[1]


def test_31_real_compiler_error_is_the_first_thing_told(machine):
    with pytest.raises(jit.CompileError, match=r'a\.cu\(\d+\): error: .*"nonsense"'):
        machine.load(CudaSpec(body="int x = nonsense;"))


def test_51_real_nvcc_that_does_not_know_an_architecture(machine):
    with pytest.raises(jit.CompileError, match="does not know sm199"):
        machine.load(CudaSpec(), (19, 9))


def test_23_warm_process_needs_no_path_at_all(machine):
    """A process of its own, with an empty environment, loads what this one has built."""
    machine.load(CudaSpec())
    program = (
        "import sys; from pathlib import Path; from fake_cuda import use_data;"
        "from test_jit_nvcc import CudaSpec; from flashinfer_msa import jit;"
        "use_data(Path(sys.argv[1]));"
        "print(jit.load(CudaSpec(), (9, 0)).flashinfer_msa_abi_version())"
    )
    environment = {
        "PATH": "/nowhere",
        "PYTHONPATH": python_path(),
        "FLASHINFER_MSA_CACHE_DIR": str(machine.cache),
        "FLASHINFER_MSA_DISABLE_JIT": "1",
    }
    command = [sys.executable, "-c", program, str(machine.data)]
    assert subprocess.check_output(command, env=environment, text=True).strip() == "1"


def test_55_newest_glibc_symbol_is_not_newer_than_this_machine(machine):
    library = jit.build(CudaSpec(), jit.Target(((9, 0),)))
    listing = subprocess.check_output(["readelf", "-VW", str(library)], text=True)
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", listing)}
    ours = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
    assert max(versions) <= ours
