# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of the kernels: no spills, no stack, and a fit for every GPU served.

Needs nvcc, not a GPU. Run with ``-s`` for the table of registers and shared memory. A few builds
stand for all, the first for both architectures and the others in turn for one; with
FLASHINFER_MSA_TEST_EVERY_BUILD=1, as before a release, all are compiled for both.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import dispatch
import pytest
from aot_wheels import SPECS as PREBUILT
from aot_wheels import build_once
from emulator import Emulator, short_name

from flashinfer_msa.env import Settings, include_dir
from flashinfer_msa.jit.flags import COMPILE_FLAGS
from flashinfer_msa.jit.toolchain import find_toolchain
from flashinfer_msa.spec import GENERIC_TOPK, SCORE_TYPES, TopKSelectSpec, common_specs

pytestmark = pytest.mark.nvcc

ARCHS = ("80", "90")
SPECS = (
    TopKSelectSpec(16, "f32", 0, 1, "token"),
    TopKSelectSpec(16, "f16"),
    TopKSelectSpec(32, "bf16", extent="uniform"),
    TopKSelectSpec(64, "f32"),
    TopKSelectSpec(16, "bf16", 0, 1, "token"),
)
if os.environ.get("FLASHINFER_MSA_TEST_EVERY_BUILD"):  # takes many minutes
    SPECS = (SPECS[0], *(spec for spec in common_specs() if spec != SPECS[0]))
    BUILDS = tuple(itertools.product(SPECS, ARCHS))
else:
    BUILDS = tuple(zip((SPECS[0], *SPECS), itertools.cycle(ARCHS), strict=False))
by_build = pytest.mark.parametrize(
    ("spec", "arch"), BUILDS, ids=[f"{spec.name}-{arch}" for spec, arch in BUILDS]
)
REGISTERS = 65536  # of a multiprocessor; each warp takes them in steps of 256
# Shared memory that a block may ask for. 8.6 and 8.9 run the code of 8.0 and have the least.
SHARED_LIMIT = {"80": 99 * 1024, "90": 227 * 1024}
_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)


class Usage(NamedTuple):
    """What ptxas says of a kernel."""

    registers: int
    stack: int
    spilled: int
    static_shared: int


class Compiled(NamedTuple):
    """What came of a unit: its PTX, what nvcc said on the way there, and ptxas of it."""

    ptx: str
    warned: str
    said: str


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Compile every unit in the background; return spec and architecture -> results to come."""
    folder = tmp_path_factory.mktemp("compiled")
    with ThreadPoolExecutor() as pool:
        yield {
            (spec, arch): [
                pool.submit(_compile, folder / f"{spec.name}-{arch}-{unit}", text, arch)
                for unit, text in spec.sources().items()
                if "template struct" in text  # the others have no kernels
            ]
            for spec, arch in BUILDS
        }


def _compile(source: Path, text: str, arch: str) -> Compiled:
    ptx = source.with_suffix(".ptx")
    source.write_text(text)
    warned = _nvcc(*COMPILE_FLAGS, f"-arch=compute_{arch}", "-ptx", source, "-o", ptx)
    said = _nvcc(f"-arch=sm_{arch}", "-Xptxas=-v", "-cubin", ptx, "-o", source.with_suffix(".out"))
    return Compiled(ptx.read_text(), warned, said)


def _nvcc(*arguments: str | Path) -> str:
    """Run nvcc; return what it says."""
    toolchain = find_toolchain(Settings.read())
    includes = [f"-I{path}" for path in (include_dir(), *toolchain.include_dirs)]
    done = subprocess.run([toolchain.nvcc, *includes, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stderr


def _usages(results: list[Future[Compiled]]) -> dict[str, Usage]:
    usages = {}
    for entry in _ENTRY.finditer("\n".join(result.result().said for result in results)):
        shared = re.search(r"(\d+) bytes smem", entry["rest"])
        usages[_demangled(entry["name"])] = Usage(
            int(entry["registers"]),
            int(entry["stack"]),
            int(entry["stores"]) + int(entry["loads"]),
            int(shared[1]) if shared else 0,
        )
    return usages


@cache
def _demangled(name: str) -> str:
    done = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True)
    return short_name(done.stdout)


@cache
def kernels(spec: TopKSelectSpec):
    """Return what each kernel asks for at launch, as the emulated build tells."""
    return Emulator(spec, "none").run([]).prepared


@by_build
def test_kernels_fit_the_gpu(work, spec, arch):
    usages = _usages(work[spec, arch])
    assert usages.keys() == kernels(spec).keys()
    problems = []
    print(f"\n{spec.name} sm_{arch}")
    for name, usage in usages.items():
        threads, storage = kernels(spec)[name]
        shared = storage + usage.static_shared
        print(
            f"  {name:30} {threads:5} threads {usage.registers:4} registers {shared:7} bytes shared"
            f" {usage.spilled:4} spilled {usage.stack:4} stack"
        )
        if usage.spilled or usage.stack:
            problems.append(f"{name}: {usage.spilled} bytes spilled, stack of {usage.stack}")
        if -(-usage.registers * 32 // 256) * 256 * threads // 32 > REGISTERS:
            problems.append(f"{name}: {usage.registers} registers for each of {threads} threads")
        if shared > SHARED_LIMIT[arch]:
            problems.append(f"{name}: {shared} bytes of shared memory of {SHARED_LIMIT[arch]}")
    assert not problems


@by_build
def test_the_compiler_has_no_warnings(work, spec, arch):
    assert not "".join(result.result().warned for result in work[spec, arch])


@by_build
def test_kernels_wait_before_they_touch_global_memory(work, spec, arch):
    """Loads of what is only read are free to move, for all that the compiler knows of them."""
    seen, empty = 0, 0
    for result in work[spec, arch]:
        ptx = result.result().ptx
        for kernel in re.findall(r"^\.visible \.entry \w+run_kernel.*?^}", ptx, re.M | re.S):
            seen += 1
            first = re.search(r"\b(ld|st|atom|red)\.[\w.]*global|cp\.async\.c|griddep\S*", kernel)
            if first is None:  # it needs clusters
                empty += 1
                continue
            assert (first[0] == "griddepcontrol.wait;") == (arch >= "90"), kernel[:400]
    assert seen == len(kernels(spec))
    shared = [name for name in dispatch.kernels(spec.topk) if name.endswith(dispatch.SHARES)]
    assert empty == (0 if arch >= "90" else len(shared))


def test_the_sanitizer_script_knows_every_kernel(tmp_path_factory, monkeypatch):
    """It reads the names from a library, where no tool of CUDA's is at hand."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "scripts")
    from sanitize_lib.kernels import name_of_event, names_in_library

    wheel = build_once(tmp_path_factory.getbasetemp()).wheel
    for name in PREBUILT:
        with zipfile.ZipFile(wheel) as archive:
            library = archive.extract(f"flashinfer_msa_aot/kernels/{name}.so", wheel.parent)
        assert names_in_library(Path(library)) == kernels(TopKSelectSpec.parse(name)).keys()
    event = (
        "void flashinfer_msa::run_kernel<flashinfer_msa::RowPerLane<flashinfer_msa::Policy<__half,"
        " (int)16, (int)0, (int)1, (bool)1>, (bool)0, (int)4> >(flashinfer_msa::Params)"
    )
    assert name_of_event(event) == "RowPerLane<.., false, 4>"
    assert name_of_event(re.sub(r"\(int\)", "", event)) == "RowPerLane<.., false, 4>"
    assert name_of_event("void at::native::vectorized_elementwise_kernel<4>(int)") is None


def test_the_specs_cover_every_form():
    assert {arch for _, arch in BUILDS} == set(ARCHS)
    assert {spec.dtype for spec in SPECS} == set(SCORE_TYPES)
    assert {spec.topk for spec in SPECS if spec.force_begin is None} == set(GENERIC_TOPK)
