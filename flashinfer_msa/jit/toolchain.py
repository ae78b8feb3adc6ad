# SPDX-License-Identifier: Apache-2.0
"""Finding the CUDA compiler and its host compiler, and telling which builds of them they are."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..env import Settings
from .errors import ToolchainError

DEFAULT_ROOT = Path("/usr/local/cuda")
_ADVICE = (
    "install a CUDA toolkit and set CUDA_HOME to its root, or `pip install flashinfer-msa[nvcc]`, "
    "or install the prebuilt kernels (`pip install flashinfer-msa-aot`)"
)
Stamp = tuple[str, int, int]
# A memo, never a freshness test: the stamp changes whenever the file does.
_ids: dict[tuple[str, Stamp], str] = {}


def file_stamp(path: Path) -> Stamp:
    """Return real path, size and time of a file: enough to recognise it, without running it."""
    real = os.path.realpath(path)
    status = os.stat(real)
    return real, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Toolchain:
    """An nvcc, where it was found, and the host compiler it will call."""

    nvcc: Path
    origin: str
    host: Path | None
    own_flags: tuple[str, str] = ("", "")
    include_dirs: tuple[Path, ...] = ()
    library_dirs: tuple[Path, ...] = ()

    @property
    def root(self) -> Path:
        """The toolkit's root, if nvcc lies in its `bin`."""
        return self.nvcc.parent.parent

    def stamp(self) -> list[object]:
        """Return what recognises these very files; costs a few `stat` and starts no process."""
        host = None if self.host is None else list(file_stamp(self.host))
        return [list(file_stamp(self.nvcc)), host, list(self.own_flags)]

    @cached_property
    def identity(self) -> dict[str, str]:
        """Build ids of both compilers: equal for equal compilers, wherever they lie.

        Raises
        ------
        ToolchainError
            A compiler could not be asked; the cause is chained.
        """
        host = "as the flags say" if self.host is None else _host_id(self.host)
        return {"nvcc": _nvcc_id(self.nvcc), "host": host, "own_flags": " ".join(self.own_flags)}

    @property
    def release(self) -> str:
        """Version of nvcc, such as `13.0.88`; empty when it does not tell."""
        match = re.search(r"\bV?(\d+\.\d+\.\d+)\b", self.identity["nvcc"])
        return match[1] if match else ""

    @property
    def has_static_libstdcxx(self) -> bool:
        """Whether the C++ runtime can be linked in, so that the library needs libc alone."""
        return self.identity["host"].endswith("static libstdc++")


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"cannot run {command[0]}: {error}; {_ADVICE}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise ToolchainError(f"{' '.join(command)} failed ({done.returncode}): {said}; {_ADVICE}")
    return done.stdout.strip()


def _nvcc_id(nvcc: Path) -> str:
    try:
        versions = json.loads((nvcc.parent.parent / "version.json").read_text("utf-8"))
        return f"nvcc {versions['cuda_nvcc']['version']}"
    except (OSError, ValueError, KeyError, TypeError):
        pass  # pip's toolkit and wrappers on PATH have no such file
    memo = ("nvcc", file_stamp(nvcc))
    if memo not in _ids:
        lines = _ask([str(nvcc), "--version"]).splitlines()
        _ids[memo] = " | ".join(line for line in lines if "Copyright" not in line)
    return _ids[memo]


def _host_id(host: Path) -> str:
    memo = ("host", file_stamp(host))
    if memo not in _ids:
        version = _ask([str(host), "--version"]).partition("\n")[0]
        machine = _ask([str(host), "-dumpmachine"])
        # A compiler that lacks the archive prints the bare name back.
        archive = _ask([str(host), "-print-file-name=libstdc++.a"])
        runtime = "static" if os.path.isabs(archive) else "shared"
        _ids[memo] = f"{version} | {machine} | {runtime} libstdc++"
    return _ids[memo]


def _settle(nvcc: Path) -> Path:
    """Follow links from a foreign `bin` to the toolkit, but not one to a compiler launcher."""
    real = Path(os.path.realpath(nvcc))
    return real if real.name == nvcc.name else nvcc.absolute()


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _pip_toolkits() -> Iterator[Path]:
    """Yield the roots that NVIDIA's wheels make under the namespace package `nvidia`."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        newest_first = sorted(Path(folder).glob("cu[0-9]*"), reverse=True)
        yield from (*newest_first, Path(folder) / "cuda_nvcc")


def search_places(settings: Settings) -> Iterator[tuple[str, Path | None]]:
    """Yield (where, nvcc or None) in the order in which nvcc is looked for."""
    for name, value in (("CUDA_HOME", settings.cuda_home), ("CUDA_PATH", settings.cuda_path)):
        if value.strip():
            yield f"{name}={value!r}", Path(value) / "bin" / "nvcc"
    on_path = shutil.which("nvcc")
    yield "PATH", Path(on_path) if on_path else None
    yield str(DEFAULT_ROOT), DEFAULT_ROOT / "bin" / "nvcc"
    pip = "pip packages (nvidia-cuda-nvcc)"
    toolkits = [root / "bin" / "nvcc" for root in _pip_toolkits()]
    yield pip, next((nvcc for nvcc in toolkits if _is_program(nvcc)), None)


def _split_layout(nvcc: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return headers and libraries that lie in sibling packages (`nvidia/cuda_runtime`)."""
    if nvcc.parent.parent.name != "cuda_nvcc":
        return (), ()
    packages = [nvcc.parent.parent.with_name(name) for name in ("cuda_runtime", "cuda_cccl")]
    includes = tuple(p / "include" for p in packages if (p / "include").is_dir())
    return includes, tuple(p / "lib" for p in packages if (p / "lib").is_dir())


def _find_host(settings: Settings) -> Path | None:
    flags = " ".join((*settings.extra_nvcc_flags, *settings.nvcc_own_flags))
    if re.search(r"(^|\s)(-ccbin|--?compiler-bindir)\b", flags):
        return None
    wanted = settings.nvcc_ccbin.strip() or "gcc"
    if os.path.isdir(wanted):
        wanted = os.path.join(wanted, "gcc")
    found = shutil.which(wanted)
    if found is None:
        raise ToolchainError(
            f"the host compiler {wanted!r} was not found on PATH; install g++, or set NVCC_CCBIN "
            "to one, or install the prebuilt kernels (`pip install flashinfer-msa-aot`)"
        )
    return Path(found)


def find_toolchain(settings: Settings) -> Toolchain:
    """Find nvcc: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda, then NVIDIA's pip packages.

    No process is started. An empty variable counts as unset; one that holds no nvcc is an error,
    because falling back would quietly use another compiler than the one asked for.

    Raises
    ------
    ToolchainError
        Nothing usable was found; the message lists every place.
    """
    seen = []
    for where, nvcc in search_places(settings):
        seen.append(where)
        if nvcc is not None and _is_program(nvcc):
            nvcc = _settle(nvcc)
            includes, libraries = _split_layout(nvcc)
            own = settings.nvcc_own_flags
            return Toolchain(nvcc, where, _find_host(settings), own, includes, libraries)
        if where.startswith("CUDA_"):
            raise ToolchainError(f"{where} has no executable bin/nvcc; correct or unset it")
    raise ToolchainError(
        f"nvcc was not found; looked at {', '.join(dict.fromkeys(seen))}; {_ADVICE}"
    )
