# SPDX-License-Identifier: Apache-2.0
"""Compiling one kernel: a ninja file in a private directory, run in a session of its own.

The working directory is the only place that the commands name. Toolkit, headers and temporary
files are reached through links in it, because nvcc hands its own paths to a shell unquoted: a
blank, a `$` or a quote in any of them would break the build however well ninja is told.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sysconfig
from pathlib import Path

from .. import env
from ..env import Settings
from .entries import LIBRARY
from .errors import CompileError, RootUnusableError, ToolchainError
from .flags import COMPILE_FLAGS, LINK_FLAGS, STATIC_RUNTIME_FLAGS
from .jobs import job_count
from .process import run_guarded
from .request import Request
from .toolchain import Toolchain

# Older Pythons fill this table without a lock: a second thread that builds would see half of it,
# and ninja's package then fails to import. Here only one thread can be.
sysconfig.get_config_vars()

_ERROR_LINE = re.compile(
    r"\berror\b\s*[:#]|: fatal|^nvcc fatal|ptxas fatal|undefined reference|cannot find -l", re.M
)
_KILLED = re.compile(r"\[code=137\]|signal 9|\bKilled\b|code 137")
_INCOMPLETE = re.compile(r"-lcudart_static|cuda_runtime\.h: No such")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")


def find_ninja() -> str:
    """Find ninja: the package's own, the interpreter's scripts folder, PATH.

    Raises
    ------
    ToolchainError
        There is none.
    """
    folders = [sysconfig.get_path("scripts")]
    try:
        import ninja

        folders.insert(0, ninja.BIN_DIR)
    except ImportError:
        pass
    found = shutil.which("ninja", path=os.pathsep.join(folders)) or shutil.which("ninja")
    if found is None:
        raise ToolchainError(
            f"ninja was not found in {', '.join(folders)} or on PATH; run `pip install ninja`"
        )
    return found


def _ninja_escape(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _command(words: list[str]) -> str:
    # `$in` and `$out` are ninja's; every other word is quoted for the shell, then for ninja.
    quoted = [word if word in ("$in", "$out") else shlex.quote(word) for word in words]
    return " ".join(w if w in ("$in", "$out") else w.replace("$", "$$") for w in quoted)


def ninja_text(request: Request, toolchain: Toolchain) -> str:
    """Return the ninja file that compiles each `.cu` by itself and links them."""
    nvcc = f"toolkit/{toolchain.nvcc.name}"
    arch = request.target.nvcc_flags()
    includes = ["-Iinclude", *(f"-Iinclude{i}" for i in range(len(toolchain.include_dirs)))]
    libraries = [f"-Llibrary{i}" for i in range(len(toolchain.library_dirs))]
    runtime = STATIC_RUNTIME_FLAGS if toolchain.has_static_libstdcxx else ()
    flags = [*arch, *includes, *request.flags]
    compile_words = [nvcc, *COMPILE_FLAGS, *flags, "-c", "$in", "-o", "$out"]
    link_words = [nvcc, *LINK_FLAGS, *runtime, *arch, *libraries, *request.flags]
    units = [name for name in request.sources if name.endswith(".cu")]
    lines = [
        "ninja_required_version = 1.3",
        f"rule compile\n  command = {_command(compile_words)}",
        f"rule link\n  command = {_command([*link_words, '$in', '-o', '$out'])}",
        *(f"build {_ninja_escape(unit)}.o: compile {_ninja_escape(unit)}" for unit in units),
        f"build {LIBRARY}: link {' '.join(_ninja_escape(unit) + '.o' for unit in units)}",
    ]
    return "\n".join(lines) + "\n"


def _fill(folder: Path, request: Request, toolchain: Toolchain) -> None:
    for name, text in request.sources.items():
        (folder / name).write_text(text, "utf-8")
    links = {"toolkit": toolchain.nvcc.parent, "include": env.include_dir()}
    links |= {f"include{i}": path for i, path in enumerate(toolchain.include_dirs)}
    links |= {f"library{i}": path for i, path in enumerate(toolchain.library_dirs)}
    for name, path in links.items():
        (folder / name).symlink_to(path)
    (folder / "tmp").mkdir()
    (folder / "build.ninja").write_text(ninja_text(request, toolchain), "utf-8")


def compile_library(
    folder: Path, request: Request, toolchain: Toolchain, settings: Settings, kept_log: Path
) -> tuple[Path, str]:
    """Compile a request in an empty private folder; return the library and the log.

    Raises
    ------
    CompileError
        The compiler failed; its whole output is at `kept_log`.
    RootUnusableError
        The file system is full.
    """
    _fill(folder, request, toolchain)
    log_path = folder / "build.log"
    command = [find_ninja(), "-v", "-j", str(job_count(settings.max_jobs))]
    # The temporary files of a killed compiler then go away with the folder.
    environment = {**os.environ, "TMPDIR": "tmp", "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}
    with log_path.open("wb") as log:
        code = run_guarded(command, folder, environment, log)
    text = log_path.read_text("utf-8", "replace")
    if code != 0 or not (folder / LIBRARY).is_file():
        if _NO_SPACE.search(text):
            raise RootUnusableError(f"{folder.parents[2]}: no space left")
        raise _failure(request, toolchain, code, text, kept_log)
    return folder / LIBRARY, text


def _failed_command(text: str, toolchain: Toolchain) -> str:
    """Return the command that failed, with the real paths instead of the links."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("FAILED:")), -1)
    command = lines[at + 1] if 0 <= at < len(lines) - 1 else ""
    command = command.replace(f"toolkit/{toolchain.nvcc.name}", shlex.quote(str(toolchain.nvcc)), 1)
    return command.replace("-Iinclude ", f"-I{shlex.quote(str(env.include_dir()))} ", 1)


def _advice(request: Request, toolchain: Toolchain, code: int, text: str) -> str:
    if code < 0 or _KILLED.search(text):
        return "a compiler was killed, probably for want of memory: set MAX_JOBS=1 and try again"
    if "Unsupported gpu architecture" in text or "is not defined for option" in text:
        return (
            f"nvcc {toolchain.release} does not know {request.target.name}: use a newer toolkit "
            "(CUDA_HOME), or set FLASHINFER_MSA_ARCH_LIST to an older arch with +PTX"
        )
    if _INCOMPLETE.search(text):
        return (
            f"the toolkit of {toolchain.nvcc} lacks the CUDA runtime: install it "
            "(pip packages nvidia-cuda-runtime and nvidia-cuda-cccl) or choose another (CUDA_HOME)"
        )
    return "read the log; if the compiler is at fault, choose another one with CUDA_HOME"


def _failure(
    request: Request, toolchain: Toolchain, code: int, text: str, kept_log: Path
) -> CompileError:
    lines = text.splitlines()
    first = next((line for line in lines if _ERROR_LINE.search(line)), "")
    first = first or next((line for line in reversed(lines) if line.strip()), "no output")
    command = _failed_command(text, toolchain)
    advice = _advice(request, toolchain, code, text)
    kept: Path | None = kept_log
    try:
        kept_log.write_text(text, "utf-8")
    except OSError:
        kept = None
    message = (
        f"compiling {request.name} for {request.target.name} failed ({code}): {first.strip()}\n"
        f"  command: {command or 'ninja'}\n  log: {kept or 'could not be kept'}\n  {advice}"
    )
    return CompileError(message, command, kept)
