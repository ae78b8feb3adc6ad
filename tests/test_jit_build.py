# SPDX-License-Identifier: Apache-2.0
"""Builds: paths, flags, and failures that say what to do. No GPU, no CUDA."""

import json
import logging
import os
import sys

import pytest
from fake_cuda import DummySpec, FakeCuda

from flashinfer_msa import jit
from flashinfer_msa.jit import compiler

ODD = "a b$HOME $$x:c'd\"e é;f&g"


@pytest.mark.parametrize("what", ["cache", "toolkit", "package", "TMPDIR"])
def test_30_odd_characters_in_a_path_do_not_matter(machine, what):
    odd = machine.folder / ODD
    if what == "cache":
        machine.patch.setenv("FLASHINFER_MSA_CACHE_DIR", str(odd))
    elif what == "toolkit":
        machine.patch.setenv("CUDA_HOME", str(FakeCuda(odd).root))
    elif what == "package":
        machine.data.rename(odd)
        machine.data = odd
    else:
        odd.mkdir()
        machine.patch.setenv("TMPDIR", str(odd))
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_30_odd_characters_in_a_flag_reach_nvcc_as_they_are(machine):
    machine.patch.setenv("FLASHINFER_MSA_EXTRA_NVCC_FLAGS", "'-DX=$HOME a:b'")
    machine.load()
    assert all("-DX=$HOME a:b" in call for call in machine.cuda.calls("-o"))


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a b", "$x", ".hidden", "x" * 400])
def test_unsafe_kernel_name_is_rejected(machine, name):
    class Spec(DummySpec):
        @property
        def name(self):
            return name

    with pytest.raises(ValueError, match="not a safe file name"):
        machine.load(Spec())
    assert machine.cuda.calls() == []


def test_unsafe_source_name_is_rejected(machine):
    class Spec(DummySpec):
        def sources(self):
            return {"../a.cu": ""}

    with pytest.raises(ValueError, match="not a safe file name"):
        machine.load(Spec())


def test_28_libcuda_is_never_linked_and_cudart_is_static(machine):
    machine.load()
    assert not any("-lcuda" in word for call in machine.cuda.calls() for word in map(str, call))
    (link,) = machine.cuda.calls("-shared")
    assert "-cudart=static" in link


def test_no_fast_math(machine):
    machine.load()
    words = [str(word) for call in machine.cuda.calls() for word in call]
    assert not any("fast" in word or "ftz" in word for word in words)


def test_sources_are_compiled_one_by_one(machine):
    class Spec(DummySpec):
        def sources(self):
            return {**super().sources(), "b.cu": "int other(void) { return 2; }", "c.h": "x"}

    machine.load(Spec())
    assert machine.cuda.compiles() == 2
    assert {p.name for p in machine.entries()[0].iterdir()} == {
        "lib.so", "meta.json", "build.log", "a.cu", "b.cu", "c.h"
    }  # fmt: skip


def test_31_error_holds_the_first_error_line_the_command_and_the_log(machine):
    machine.cuda.set(fails='a.cu(7): error: identifier "foo" is undefined\na.cu(9): error: x')
    with pytest.raises(jit.CompileError) as caught:
        machine.load()
    message = str(caught.value)
    assert 'a.cu(7): error: identifier "foo" is undefined' in message
    assert "warning #1" not in message
    assert str(machine.cuda.root / "bin" / "nvcc") in message
    assert caught.value.log_path is not None
    assert "a.cu(9): error: x" in caught.value.log_path.read_text()
    assert str(caught.value.log_path) in message
    assert machine.entries() == []
    assert list((machine.cache / "staging").iterdir()) == []


def test_31_failure_is_not_remembered(machine):
    machine.cuda.set(fails="error: today")
    with pytest.raises(jit.CompileError):
        machine.load()
    machine.cuda.set(fails="")
    assert machine.load().flashinfer_msa_abi_version() == 1


def test_31_killed_compiler_gives_a_hint_at_memory(machine):
    machine.cuda.set(killed=True)
    with pytest.raises(jit.CompileError, match="MAX_JOBS=1"):
        machine.load()
    assert machine.entries() == []


def test_51_architecture_that_nvcc_does_not_know_is_told(machine):
    machine.cuda.set(fails="nvcc fatal   : Unsupported gpu architecture 'compute_120'")
    with pytest.raises(jit.CompileError, match=r"nvcc 13\.0\.88 does not know sm120"):
        machine.load(capability=(12, 0))


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/ld: cannot find -lcudart_static: No such file or directory",
        "a.cu(2): fatal error: cuda_runtime.h: No such file or directory",
    ],
)
def test_27_toolkit_without_its_runtime_is_told(machine, line):
    machine.cuda.set(fails=line)
    with pytest.raises(jit.CompileError, match="nvidia-cuda-runtime") as error:
        machine.load()
    assert line in str(error.value)


def test_09_truncated_output_of_a_compiler_that_reports_success_is_not_published(machine):
    machine.cuda.set(truncates=True)
    with pytest.raises(jit.CompileError, match="not usable"):
        machine.load()
    assert machine.entries() == []


@pytest.mark.parametrize("codes", [[["sm", "80"]], [["sm", "90"], ["sm", "80"]], []])
def test_39_library_for_another_architecture_is_not_published(machine, codes):
    machine.cuda.set(codes=codes)
    with pytest.raises(jit.CompileError, match=r"instead of \['sm90'\]"):
        machine.load()
    assert machine.entries() == []


def test_library_of_another_abi_is_not_published(machine):
    with pytest.raises(jit.CompileError, match=r"flashinfer_msa_abi_version\(\) is 5, not 1"):
        machine.load(DummySpec(promised=5))
    assert machine.entries() == []


def test_library_with_an_undefined_symbol_is_not_published(machine):
    with pytest.raises(jit.CompileError, match="nowhere_defined"):
        machine.load(
            DummySpec(body="int nowhere_defined(void); int x(void) { return nowhere_defined(); }")
        )
    assert machine.entries() == []


def test_29_ninja_of_the_package_is_found_without_path(machine):
    pytest.importorskip("ninja")
    machine.patch.setenv("PATH", "/nowhere")
    assert os.access(compiler.find_ninja(), os.X_OK)


def test_29_missing_ninja_is_a_precise_error(machine):
    machine.patch.setenv("PATH", "/nowhere")
    machine.patch.setitem(sys.modules, "ninja", None)
    machine.patch.setattr(compiler.sysconfig, "get_path", lambda _: "/nowhere/else")
    with pytest.raises(jit.ToolchainError, match=r"/nowhere/else.*pip install ninja"):
        compiler.find_ninja()


def test_60_start_and_end_of_a_build_are_one_line_each(machine, caplog):
    with caplog.at_level(logging.INFO, "flashinfer_msa"):
        machine.load()
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert len(lines) == 2
    assert lines[0].startswith("building dummy_0 for sm90 in ")
    assert lines[1].startswith("built dummy_0 in ")
    assert lines[1].endswith(str(machine.library()))


@pytest.mark.parametrize(("value", "speaks"), [("1", True), ("0", False)])
def test_verbose_prints_to_stderr_and_silence_is_silent(machine, value, speaks):
    done = machine.start("0", FLASHINFER_MSA_VERBOSE=value)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    assert ("building dummy_0" in err) is speaks
    assert set(json.loads(out)) == {"versions", "seconds"}
