# SPDX-License-Identifier: Apache-2.0
"""From a spec to a loaded library: process memo, prebuilt wheel, cache, build."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..env import Settings
from .aot import find_wheel
from .arch import Target, resolve_target
from .entries import DamagedError, find_entries, verify
from .errors import MissingKernelError, ToolchainError
from .log import enable_stderr, logger
from .produce import Built, build_request, load_entries
from .request import Request
from .roots import candidate_roots, readable_roots
from .spec import KernelSpec
from .toolchain import Toolchain, find_toolchain

Key = tuple[KernelSpec, tuple[int, int]]


class _Flight:
    """The first load of one key: one thread does it, the others wait for how it ends."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.failures = 0
        self.error: Exception | None = None


_memo: dict[Key, ctypes.CDLL] = {}
_flights: dict[Key, _Flight] = {}
_flights_guard = threading.Lock()


def _forget_flights() -> None:
    # Another thread of the parent may hold one of these; here nobody would ever release it.
    global _flights_guard
    _flights_guard = threading.Lock()
    _flights.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_flights)


class Found(NamedTuple):
    """Where a kernel would come from: `aot`, `cache` or `absent`."""

    source: str
    path: Path | None = None
    meta: Mapping[str, Any] = {}


def load(spec: KernelSpec, capability: tuple[int, int]) -> ctypes.CDLL:
    """Return the library of a spec for a GPU, building it if it is nowhere.

    A repeated call is one look-up in a dict. A first call looks in the prebuilt wheel, then in the
    cache; neither takes a lock, writes, starts a process or needs a compiler. Any number of
    threads and processes may call at once: each kernel is built once.

    Parameters
    ----------
    spec : KernelSpec
        Hashable, equal by value.
    capability : (major, minor)
        Compute capability of the GPU that will run it.

    Raises
    ------
    MissingKernelError
        It is nowhere and may not be built (FLASHINFER_MSA_DISABLE_JIT), or no cache is usable.
    ToolchainError
        There is no compiler.
    CompileError
        The compiler failed.
    ValueError
        A variable of the environment is malformed, or FLASHINFER_MSA_ARCH_LIST excludes the GPU.
    """
    library = _memo.get((spec, capability))
    if library is not None:
        return library
    return _load_once((spec, capability))


def _load_once(key: Key) -> ctypes.CDLL:
    """Load a key in one thread at a time; other keys are not held up."""
    with _flights_guard:
        flight = _flights.setdefault(key, _Flight())
    failures = flight.failures
    with flight.lock:
        if key in _memo:
            return _memo[key]
        if flight.error is not None and flight.failures != failures:
            raise flight.error  # it failed while this thread waited; trying again would not help
        try:
            library = _memo[key] = _load_cold(*key)
        except Exception as error:
            flight.failures += 1
            flight.error = error
            raise
        flight.error = None
        return library


def _load_cold(spec: KernelSpec, capability: tuple[int, int]) -> ctypes.CDLL:
    settings = _settings()
    wheel = find_wheel()
    library = wheel.load(spec, capability) if wheel else None
    if library is not None:
        return library
    target = resolve_target(capability, settings.arch_list)
    return _find_or_build(Request.of(spec, target, settings), settings).library


def _settings() -> Settings:
    settings = Settings.read()
    if settings.verbose:
        enable_stderr()
    return settings


def _known_toolchain(settings: Settings) -> Toolchain | None:
    """Return the compiler that entries must be of; None if any compiler's entry will do."""
    if settings.disable_jit:
        return None
    try:
        return find_toolchain(settings)
    except ToolchainError as error:
        logger.debug("%s", error)
        return None


def _find_or_build(request: Request, settings: Settings) -> Built:
    toolchain = _known_toolchain(settings)
    for root in readable_roots(settings):
        for built in load_entries(root, request, toolchain):
            return built
    if settings.disable_jit:
        roots = ", ".join(str(root.path) for root in candidate_roots(settings))
        raise MissingKernelError(
            f"{request.name} for {request.target.name} is neither in the wheel flashinfer-msa-aot "
            f"nor in the cache ({roots}), and FLASHINFER_MSA_DISABLE_JIT forbids to build it; "
            "install the matching flashinfer-msa-aot, or unset FLASHINFER_MSA_DISABLE_JIT"
        )
    return build_request(request, settings)


def find(spec: KernelSpec, capability: tuple[int, int]) -> Found:
    """Tell where `load` would find a kernel, without loading or building it."""
    settings = _settings()
    wheel = find_wheel()
    path = wheel.find(spec, capability) if wheel else None
    if wheel and path:
        return Found("aot", path, wheel.manifest["artifacts"][spec.name])
    return find_cached(spec, resolve_target(capability, settings.arch_list), settings)


def find_cached(spec: KernelSpec, target: Target, settings: Settings) -> Found:
    """Look a kernel up in the cache alone, for a target."""
    request = Request.of(spec, target, settings)
    toolchain = _known_toolchain(settings)
    for root in readable_roots(settings):
        for entry in find_entries(root, request, toolchain):
            try:
                verify(entry.library, entry.meta["library"])
            except DamagedError:
                continue
            return Found("cache", entry.library, entry.meta)
    return Found("absent")


def build(spec: KernelSpec, target: Target, settings: Settings | None = None) -> Path:
    """Return the cached library of a spec for any target, building it if it is absent.

    Parameters
    ----------
    spec : KernelSpec
    target : Target
        What the library must hold; no GPU is needed.
    settings : Settings, optional
        In place of the environment's.

    Returns
    -------
    Path
        The library; `meta.json`, the sources and `build.log` lie beside it.
    """
    settings = settings or _settings()
    return _find_or_build(Request.of(spec, target, settings), settings).path
