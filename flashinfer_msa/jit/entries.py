# SPDX-License-Identifier: Apache-2.0
"""Cache entries: how they are found, checked, loaded and published."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ToolchainError
from .log import logger
from .request import SCHEMA, Request, digest
from .roots import LAYOUT, Root, distrust, move_aside, remove_tree
from .spec import ABI_SYMBOL
from .toolchain import Toolchain

LIBRARY = "lib.so"
META = "meta.json"


class DamagedError(Exception):
    """An artifact is not what its manifest promises; it is never loaded."""


@dataclass(frozen=True)
class Entry:
    """A published entry and its manifest."""

    root: Root
    path: Path
    meta: Mapping[str, Any]

    @property
    def library(self) -> Path:
        """The shared library."""
        return self.path / LIBRARY

    @classmethod
    def read(cls, root: Root, path: Path) -> Entry:
        """Read an entry's manifest.

        Raises
        ------
        DamagedError
            It is missing, malformed or of another schema, or the directory is not to be trusted.
        """
        try:
            reason = distrust(path)
            meta = json.loads((path / META).read_text("utf-8"))
            known = meta["schema"] == SCHEMA and isinstance(meta["created"], (int, float))
            complete = known and meta["library"]["sha256"] and meta["toolchain"]["identity"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{META}: {error}") from None
        if reason or not complete:
            raise DamagedError(reason or f"{META} is of another schema")
        return cls(root, path, meta)

    def load(self, abi: int) -> ctypes.CDLL:
        """Check the library against the manifest, then load it."""
        return load_checked(self.library, self.meta["library"], abi)


def verify(path: Path, promise: Mapping[str, Any], installed: bool = False) -> None:
    """Check that a library has the promised size and hash.

    What an installer wrote may be writable by a group (umask 002), as the modules beside it are;
    what lies in a cache may not.

    Raises
    ------
    DamagedError
        It has not, or others could change it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from None
    if not installed and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DamagedError(f"{path.name} can be written by others")
    if len(data) != promise["size"]:
        raise DamagedError(f"{path.name} has {len(data)} bytes instead of {promise['size']}")
    if hashlib.sha256(data).hexdigest() != promise["sha256"]:
        raise DamagedError(f"{path.name} has another hash than its manifest says")


def load_checked(
    path: Path, promise: Mapping[str, Any], abi: int, installed: bool = False
) -> ctypes.CDLL:
    """Load a library; nothing of it is executed unless size and hash are as promised."""
    verify(path, promise, installed)
    return open_library(path, abi)


def open_library(path: Path, abi: int) -> ctypes.CDLL:
    """`dlopen` a library and check its ABI version."""
    try:
        library = ctypes.CDLL(str(path))
        version = getattr(library, ABI_SYMBOL)
    except (OSError, AttributeError) as error:
        raise DamagedError(f"{path.name}: {error}") from None
    version.argtypes, version.restype = (), ctypes.c_int
    if version() != abi:
        raise DamagedError(f"{path.name}: {ABI_SYMBOL}() is {version()}, not {abi}")
    return library


def _candidates(root: Root, request: Request) -> Iterator[Entry]:
    folder = root.entries / request.folder
    prefix = request.stem + "-"
    try:
        names = [name for name in os.listdir(folder) if name.startswith(prefix)]
        refused = names and (distrust(root.entries) or distrust(folder))
    except OSError:
        return
    if refused:
        logger.warning("cache directory not used: %s", refused)
        return
    found = []
    for name in names:
        try:
            found.append(Entry.read(root, folder / name))
        except DamagedError as error:
            logger.warning("damaged cache entry %s is ignored: %s", folder / name, error)
    yield from sorted(found, key=lambda entry: entry.meta["created"], reverse=True)


def find_entries(root: Root, request: Request, toolchain: Toolchain | None) -> Iterator[Entry]:
    """Yield the entries that serve a request, best first.

    With a compiler at hand, only those that it made; without one, all, newest first. An entry
    that remembers these very compiler files is recognised without starting a process.
    """
    entries = list(_candidates(root, request))
    if toolchain is None or not entries:
        yield from entries
        return
    stamp = toolchain.stamp()
    recognised = [entry for entry in entries if entry.meta["toolchain"].get("stamp") == stamp]
    yield from recognised
    for entry in entries:
        if entry not in recognised and _made_by(entry, toolchain):
            yield entry


def _made_by(entry: Entry, toolchain: Toolchain) -> bool:
    try:
        return bool(entry.meta["toolchain"]["identity"] == toolchain.identity)
    except ToolchainError as error:
        # A compiler that cannot even be asked cannot build either; any entry is better.
        logger.info("%s", error)
        return True


def entry_path(root: Root, request: Request, toolchain: Toolchain) -> Path:
    """Return where the entry of this request and these compilers lies."""
    compilers = digest(toolchain.identity, 12)
    return root.path / LAYOUT / request.folder / f"{request.stem}-{compilers}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(root: Root, staged: Path, final: Path) -> bool:
    """Make a staged entry visible by one rename; False if another process was first.

    Raises
    ------
    OSError
        The place cannot take it.
    """
    for file in staged.iterdir():
        file.chmod(0o644)
        _sync(file)
    staged.chmod(0o755)
    _sync(staged)
    final.parent.mkdir(mode=0o755, exist_ok=True)
    try:
        os.rename(staged, final)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    _sync(final.parent)
    return True


def replace_damaged(root: Root, final: Path) -> None:
    """Take a damaged entry out of the way, so that a good one can be published."""
    aside = move_aside(root, final)
    if aside is not None:
        remove_tree(aside)
