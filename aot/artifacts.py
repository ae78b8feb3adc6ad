# SPDX-License-Identifier: Apache-2.0
"""Compiling the kernels of a wheel with the compiler driver of `flashinfer_msa.jit`."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flashinfer_msa.env import Settings
from flashinfer_msa.jit import CompileError, KernelSpec, Target, ToolchainError, job_count
from flashinfer_msa.jit.aot import describe_artifact
from flashinfer_msa.jit.compiler import compile_library
from flashinfer_msa.jit.elf import embedded_codes, read_sections
from flashinfer_msa.jit.entries import DamagedError, open_library
from flashinfer_msa.jit.errors import RootUnusableError
from flashinfer_msa.jit.process import stop_all
from flashinfer_msa.jit.request import Request
from flashinfer_msa.jit.toolchain import Toolchain, find_toolchain

from .old_glibc import write_stand_ins
from .symbols import Version, check_symbols

# Exceptions and guarded statics occur only in launch stubs that nvcc adds and nobody calls, but
# they would pull in the C++ runtime of the build machine, and with it a glibc as new as its own.
WHEEL_FLAGS = ("-Xcompiler=-fno-exceptions", "-Xcompiler=-fno-threadsafe-statics")
# 13 % off the wheel. Every driver that a toolkit of this age builds for can unpack it.
SMALLER_FLAGS = ("--compress-mode=size",)
SMALLER_SINCE = 13


class Artifact(NamedTuple):
    """One compiled library and what was found in it."""

    name: str
    data: bytes
    entry: dict[str, Any]
    glibc: Version
    seconds: float


def wheel_settings(cuda_home: str = "", jobs: int | None = None) -> tuple[Settings, Toolchain]:
    """Return the environment's settings with those that a wheel needs, and the compilers.

    Raises
    ------
    ToolchainError
        There is no compiler.
    """
    settings = Settings.read()
    max_jobs = str(jobs) if jobs else settings.max_jobs
    home = cuda_home or settings.cuda_home
    settings = replace(settings, cuda_home=home, max_jobs=max_jobs)
    toolchain = find_toolchain(settings)
    if toolchain.host is None:
        raise ToolchainError("name the host compiler with NVCC_CCBIN, not in nvcc's flags")
    smaller = SMALLER_FLAGS if int(toolchain.release.split(".")[0] or 0) >= SMALLER_SINCE else ()
    flags = (*WHEEL_FLAGS, *smaller, *settings.extra_nvcc_flags)
    return replace(settings, extra_nvcc_flags=flags), toolchain


def inspect_library(data: bytes, target: Target) -> Version:
    """Return the glibc that a library needs, after checking that it holds exactly `target`.

    Raises
    ------
    SymbolError
        It needs more of the system than every promised one has.
    ValueError
        It does not hold the promised code, or cannot be read.
    """
    inside = embedded_codes(read_sections(data))
    promised = frozenset(re.sub("[af]$", "", code) for code in target.codes)
    if inside is None or inside != promised:
        raise ValueError(f"it holds {sorted(inside or ())} instead of {sorted(promised)}")
    return check_symbols(data)


def _compile(
    spec: KernelSpec, target: Target, toolchain: Toolchain, settings: Settings, logs: Path
) -> Artifact:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flashinfer_msa_aot.") as folder:
        work = Path(folder) / "work"
        work.mkdir()
        request = Request.of(spec, target, settings)
        try:
            path, _ = compile_library(work, request, toolchain, settings, logs / f"{spec.name}.log")
            data = path.read_bytes()
            entry = describe_artifact(path, f"kernels/{spec.name}.so", target)
            glibc = inspect_library(data, target)
            open_library(path, spec.abi)
        except RootUnusableError as error:
            raise CompileError(f"{error}; set TMPDIR to a larger place") from error
        except (DamagedError, ValueError) as error:
            raise CompileError(f"{spec.name} cannot go into a wheel: {error}") from error
    return Artifact(spec.name, data, entry, glibc, time.monotonic() - began)


def compile_all(
    specs: Iterable[KernelSpec],
    target: Target,
    toolchain: Toolchain,
    settings: Settings,
    logs: Path,
    progress: Callable[[Artifact], None],
) -> list[Artifact]:
    """Compile kernels side by side, as many at a time as there are jobs.

    Returns
    -------
    list of Artifact
        In the order of `specs`, none missing.

    Raises
    ------
    CompileError
        One of them failed, or made something that may not go into a wheel.
    """
    specs = list(specs)
    jobs = job_count(settings.max_jobs)
    share = replace(settings, max_jobs=str(max(1, jobs // max(1, len(specs)))))
    with tempfile.TemporaryDirectory(prefix="flashinfer_msa_aot.") as folder:
        if toolchain.host and write_stand_ins(Path(folder), toolchain.host):
            toolchain = replace(toolchain, library_dirs=(Path(folder), *toolchain.library_dirs))
        with ThreadPoolExecutor(min(jobs, max(1, len(specs)))) as pool:
            futures = [
                pool.submit(_compile, spec, target, toolchain, share, logs) for spec in specs
            ]
            try:
                for future in as_completed(futures):
                    progress(future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                stop_all()  # or the compilers would be waited for
                raise
    return [future.result() for future in futures]
