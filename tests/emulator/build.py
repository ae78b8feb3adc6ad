# SPDX-License-Identifier: Apache-2.0
"""Compiling programs for the emulated machine, in the background, and running them."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FINDING = 3  # exit code

# "races" checks each access by happens-before; "address" looks for bad addresses and undefined
# behaviour; "none" is for what the kernels ask for.
CHECKS = {
    "races": ("-fsanitize=thread",),
    "address": ("-fsanitize=address,undefined", "-O0"),
    "none": ("-O0",),
}
_FLAGS = (
    "-std=c++17", "-O1", "-g1", "-fno-pie", "-fno-sanitize-recover=all", "-U_FORTIFY_SOURCE",
    '-DFLASHINFER_MSA_EMULATED_DEVICE="device.hpp"',
)  # fmt: skip

_work = ThreadPoolExecutor(os.cpu_count() or 1)


@cache
def folder() -> Path:
    """Return a scratch folder of this process, which goes away with it."""
    path = tempfile.mkdtemp(prefix="flashinfer_msa_emulator.")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _compiler() -> str:
    return os.environ.get("CXX") or "g++"


def _compile(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} failed\n{done.stderr[:4000]}")


@cache
def _runtime(check: str) -> list[Future[Path]]:
    """Compile the machine: not watched itself, it takes the place of a sanitizer's library."""
    own = () if check == "races" else CHECKS[check]

    def run(source: Path) -> Path:
        target = folder() / f"machine-{source.stem}-{check}.o"
        _compile(_compiler(), *_FLAGS, "-O2", *own, f"-I{HERE}", "-c", source, "-o", target)
        return target

    return [_work.submit(run, source) for source in sorted(HERE.glob("machine/*.cpp"))]


@cache
def compile_program(unit: Path, check: str, include: Path | None = None) -> Future[Path]:
    """Compile a unit for the emulated machine, in the background and once; return the program."""
    # Submitted first: a thread that waits for the runtime cannot keep it from being compiled.
    runtime = _runtime(check)

    def run() -> Path:
        program = folder() / f"{unit.stem}-{check}-{abs(hash(include)):x}"
        target = program.with_suffix(".o")
        includes = [f"-I{path}" for path in (include, HERE) if path is not None]
        _compile(_compiler(), *_FLAGS, *CHECKS[check], *includes, "-c", unit, "-o", target)
        link = () if check == "races" else CHECKS[check]
        machine = [part.result() for part in runtime]
        _compile(_compiler(), "-no-pie", target, *machine, *link, "-o", program)
        return program

    return _work.submit(run)


def run_program(
    program: Path, *arguments: str | Path, mutant: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a program for the emulated machine; a finding gives the exit code FINDING."""
    environ = {
        **os.environ,
        "FLASHINFER_MSA_MUTANT": str(mutant),
        "ASAN_OPTIONS": f"exitcode={FINDING}:detect_leaks=0",
        "UBSAN_OPTIONS": f"exitcode={FINDING}",
    }
    done = subprocess.run([program, *arguments], env=environ, capture_output=True, text=True)
    # It is told about every switch of fibres, and warns all the same.
    done.stderr = re.sub(r".*ASan doesn't fully support makecontext.*\n", "", done.stderr)
    return done


def with_lines(program: Path, text: str) -> str:
    """Append source lines to the addresses in a report of the runtime's."""
    addresses = re.findall(r"at (0x[0-9a-f]+)", text)
    if not addresses or shutil.which("addr2line") is None:
        return text
    # One byte back: an address is where the access returns to.
    back = [hex(int(address, 16) - 1) for address in addresses]
    command = ["addr2line", "-C", "-e", str(program), *back]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    for address, line in zip(addresses, lines, strict=False):
        text = text.replace(f"at {address}", f"at {line}")
    return text
