# SPDX-License-Identifier: Apache-2.0
"""Every environment variable and every data path of the package, in one place.

Nothing here runs at import. `Settings.read` is called once for each cold look-up or build and the
value is passed on, so that one build never sees two states of the environment.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PREFIX = "FLASHINFER_MSA_"
_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"", "0", "false", "off", "no"})


class Variable(NamedTuple):
    """One row of the table of environment variables."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        PREFIX + "CACHE_DIR",
        "`$XDG_CACHE_HOME/flashinfer_msa`, else `~/.cache/flashinfer_msa`",
        "Where built kernels are kept. May be read-only: its kernels are then still used.",
    ),
    Variable(
        PREFIX + "ARCH_LIST",
        "the tensor's own GPU",
        "What to compile for, such as `8.0;9.0`, `8.0+PTX`, `sm_90` or `Hopper`.",
    ),
    Variable(
        PREFIX + "DISABLE_JIT",
        "0",
        "1: never compile. Prebuilt and cached kernels are still loaded.",
    ),
    Variable(PREFIX + "EXTRA_NVCC_FLAGS", "none", "More flags for nvcc, such as `-lineinfo`."),
    Variable(
        PREFIX + "LOCK_TIMEOUT",
        "600",
        "Seconds to wait for another process that builds the same kernel, then build it too.",
    ),
    Variable(
        PREFIX + "PDL",
        "1",
        "0: a kernel starts when the one before it has ended (no programmatic dependent launch).",
    ),
    Variable(PREFIX + "VERBOSE", "0", "1: print the package's log to stderr."),
    Variable("CUDA_HOME", "none", "Root of the CUDA toolkit, looked at first."),
    Variable("CUDA_PATH", "none", "Root of the CUDA toolkit, looked at second."),
    Variable("MAX_JOBS", "by cores and free memory", "Compilers that may run side by side."),
    Variable("XDG_CACHE_HOME", "`~/.cache`", "Parent of the default cache directory."),
    Variable("TMPDIR", "/tmp", "Parent of the cache that is used when no other can be written."),
    Variable("NVCC_CCBIN", "`gcc` on PATH", "Host compiler; read by nvcc itself."),
    Variable("NVCC_PREPEND_FLAGS", "none", "Flags that nvcc itself reads; part of the cache key."),
    Variable("NVCC_APPEND_FLAGS", "none", "Flags that nvcc itself reads; part of the cache key."),
)


def parse_bool(name: str, text: str) -> bool:
    """Read a boolean variable; anything but the eight accepted words is an error."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"{name}={text!r} is not a boolean; use 1/true/on/yes or 0/false/off/no")


def _parse_seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if seconds >= 0:
        return seconds
    raise ValueError(f"{name}={text!r} is not a number of seconds; use a number >= 0")


def _parse_flags(name: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{name}={text!r} cannot be split into flags: {error}") from None


def _parse_directory(name: str, text: str) -> Path | None:
    if not text.strip():
        return None
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{name}={text!r} cannot be expanded: {error}") from None


@dataclass(frozen=True)
class Settings:
    """The environment as one build or one cold look-up sees it."""

    cache_dir: Path | None = None
    arch_list: str = ""
    disable_jit: bool = False
    extra_nvcc_flags: tuple[str, ...] = ()
    lock_timeout: float = 600.0
    dependent_launch: bool = True
    verbose: bool = False
    cuda_home: str = ""
    cuda_path: str = ""
    max_jobs: str = ""
    xdg_cache_home: str = ""
    tmpdir: str = ""
    nvcc_ccbin: str = ""
    nvcc_own_flags: tuple[str, str] = ("", "")

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the environment.

        Raises
        ------
        ValueError
            A variable has a value outside its grammar; the message names it.
        """
        source = os.environ if environ is None else environ

        def text(name: str) -> str:
            return source.get(name, "")

        lock_timeout = text(PREFIX + "LOCK_TIMEOUT")
        return cls(
            cache_dir=_parse_directory(PREFIX + "CACHE_DIR", text(PREFIX + "CACHE_DIR")),
            arch_list=text(PREFIX + "ARCH_LIST"),
            disable_jit=parse_bool(PREFIX + "DISABLE_JIT", text(PREFIX + "DISABLE_JIT")),
            extra_nvcc_flags=_parse_flags(
                PREFIX + "EXTRA_NVCC_FLAGS", text(PREFIX + "EXTRA_NVCC_FLAGS")
            ),
            lock_timeout=_parse_seconds(PREFIX + "LOCK_TIMEOUT", lock_timeout or "600"),
            dependent_launch=parse_bool(PREFIX + "PDL", text(PREFIX + "PDL") or "1"),
            verbose=parse_bool(PREFIX + "VERBOSE", text(PREFIX + "VERBOSE")),
            cuda_home=text("CUDA_HOME"),
            cuda_path=text("CUDA_PATH"),
            max_jobs=text("MAX_JOBS"),
            xdg_cache_home=text("XDG_CACHE_HOME"),
            tmpdir=text("TMPDIR"),
            nvcc_ccbin=text("NVCC_CCBIN"),
            nvcc_own_flags=(text("NVCC_PREPEND_FLAGS"), text("NVCC_APPEND_FLAGS")),
        )


def _data_dir(name: str) -> Path:
    package = Path(__file__).resolve().parent
    # A wheel carries the folder inside the package; a checkout has it beside the package.
    for parent in (package, package.parent):
        if (parent / name).is_dir():
            return parent / name
    raise FileNotFoundError(f"no folder {name!r} in {package} or beside it; reinstall the package")


def include_dir() -> Path:
    """Return the folder that holds the CUDA headers; sources include `flashinfer_msa/...` of it."""
    return _data_dir("include")


def template_dir() -> Path:
    """Return the folder that holds the Jinja templates."""
    return _data_dir("templates")


def package_version() -> str:
    """Return this package's version; in a cache entry it only informs."""
    from flashinfer_msa import __version__

    return __version__
