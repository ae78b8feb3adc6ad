# SPDX-License-Identifier: Apache-2.0
"""Building one kernel into the first cache directory that can take it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..env import Settings, package_version
from .compiler import compile_library
from .driver import warn_if_driver_is_older
from .elf import ElfError, embedded_codes, read_sections
from .entries import (
    LIBRARY,
    META,
    DamagedError,
    Entry,
    entry_path,
    find_entries,
    open_library,
    publish,
    replace_damaged,
)
from .errors import CompileError, MissingKernelError, RootUnusableError
from .lock import hold
from .log import logger, warn_once
from .request import SCHEMA, Request, digest
from .roots import PLACE_ERRNOS, Root, candidate_roots, remove_tree
from .toolchain import Toolchain, find_toolchain


class Built(NamedTuple):
    """A loaded library and where it lies."""

    library: ctypes.CDLL
    path: Path


def load_entries(root: Root, request: Request, toolchain: Toolchain | None) -> Iterator[Built]:
    """Load the entries that serve a request; a damaged one is passed over with a warning."""
    for entry in find_entries(root, request, toolchain):
        try:
            yield Built(entry.load(request.spec.abi), entry.library)
        except DamagedError as error:
            logger.warning("damaged cache entry %s is ignored: %s", entry.path, error)


def _validate(path: Path, request: Request) -> ctypes.CDLL:
    """Check a fresh library before anyone else can see it."""
    promised = {re.sub("[af]$", "", code) for code in request.target.codes}
    try:
        inside = embedded_codes(read_sections(path.read_bytes()))
        if inside is not None and inside != promised:
            raise DamagedError(f"it holds {sorted(inside)} instead of {sorted(promised)}")
        return open_library(path, request.spec.abi)
    except (ElfError, DamagedError) as error:
        raise CompileError(
            f"the compiler's library for {request.name} is not usable: {error}; "
            "check FLASHINFER_MSA_EXTRA_NVCC_FLAGS and the toolkit (CUDA_HOME)"
        ) from None


def _manifest(request: Request, toolchain: Toolchain, library: Path, began: float) -> str:
    data = library.read_bytes()
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "name": request.name,
        "abi": request.spec.abi,
        "arch": list(request.target.codes),
        "machine": os.uname().machine,
        "source_key": request.source_key,
        "inputs": {name: digest(text) for name, text in request.inputs.items()},
        "sources": {name: digest(text) for name, text in request.sources.items()},
        "headers": dict(request.headers),
        "flags": list(request.flags),
        "toolchain": {"identity": toolchain.identity, "stamp": toolchain.stamp()},
        "package_version": package_version(),
        "library": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "created": time.time(),
        "seconds": round(time.monotonic() - began, 3),
    }
    return json.dumps(manifest, indent=1, sort_keys=True)


def _settle(root: Root, staged: Path, final: Path, request: Request) -> Built:
    """Publish a staged entry and load what is then there: ours, or that of whoever was first."""
    own = open_library(staged / LIBRARY, request.spec.abi)
    for _ in range(2):
        won = publish(root, staged, final)
        try:
            entry = Entry.read(root, final)
            return Built(entry.load(request.spec.abi), entry.library)
        except DamagedError as error:
            if won or not os.path.lexists(final):
                # A network file system may not show yet what the rename has met.
                break
            logger.warning("damaged cache entry %s is replaced: %s", final, error)
            replace_damaged(root, final)
    return Built(own, final / LIBRARY)


def _produce(root: Root, request: Request, toolchain: Toolchain, settings: Settings) -> Built:
    began = time.monotonic()
    staging = root.new_staging(request.stem)
    logger.info("building %s for %s in %s", request.name, request.target.name, root.path)
    try:
        work, staged = staging / "work", staging / "entry"
        work.mkdir()
        staged.mkdir()
        kept_log = root.log_path(request.folder, request.stem)
        library, log = compile_library(work, request, toolchain, settings, kept_log)
        _validate(library, request)
        os.rename(library, staged / LIBRARY)
        for name in request.sources:
            os.rename(work / name, staged / name)
        (staged / "build.log").write_text(log, "utf-8")
        (staged / META).write_text(_manifest(request, toolchain, staged / LIBRARY, began), "utf-8")
        built = _settle(root, staged, entry_path(root, request, toolchain), request)
    finally:
        remove_tree(staging)
    logger.info("built %s in %.1f s: %s", request.name, time.monotonic() - began, built.path)
    return built


def _build_in(root: Root, request: Request, toolchain: Toolchain, settings: Settings) -> Built:
    """Build in one directory, unless another process did so while the lock was waited for."""
    try:
        root.prepare()
        with hold(root.lock_path(request.folder, request.stem), settings.lock_timeout):
            found = next(load_entries(root, request, toolchain), None)
            return found or _produce(root, request, toolchain, settings)
    except OSError as error:
        if error.errno not in PLACE_ERRNOS:
            raise
        raise RootUnusableError(f"{root.path}: {error}") from error


def build_request(request: Request, settings: Settings) -> Built:
    """Build a request, in the first cache directory that can take it.

    Raises
    ------
    ToolchainError
        There is no compiler.
    CompileError
        It failed.
    MissingKernelError
        No cache directory is usable.
    """
    toolchain = find_toolchain(settings)
    warn_if_driver_is_older(toolchain.release)
    reasons = []
    for root in candidate_roots(settings):
        try:
            return _build_in(root, request, toolchain, settings)
        except RootUnusableError as error:
            warn_once(f"cache directory not used: {error}")
            reasons.append(str(error))
    raise MissingKernelError(
        f"{request.name} cannot be built, for want of a cache directory: {'; '.join(reasons)}; set "
        "FLASHINFER_MSA_CACHE_DIR to a directory of your own that is writable and not noexec"
    )
