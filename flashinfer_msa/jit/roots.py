# SPDX-License-Identifier: Apache-2.0
"""Cache directories: which ones to look in, which to trust, which can take a new entry.

<root>/v1/<arch>-<machine>/<name>-<hash>/   one immutable entry
<root>/locks/                               lock files, which stay
<root>/staging/                             private work of running builds, and what is removed
<root>/logs/                                output of the last failed build of each kernel
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..env import Settings
from .errors import RootUnusableError
from .lock import process_alive
from .log import logger, warn_once

LAYOUT = "v1"
# The errors of a place, not of a build: another directory may do.
PLACE_ERRNOS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}
    | {errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.ESTALE, errno.EIO, errno.EXDEV}
)
_STALE_SECONDS = 24 * 3600


def distrust(path: Path, follow: bool = False) -> str:
    """Return why a directory could hold another user's work; empty if it cannot.

    What is loaded from here runs in this process, so a directory counts only if it belongs to this
    user or to root and nobody else may write to it.
    """
    status = os.stat(path) if follow else os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a directory"
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to uid {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by others (chmod go-w)"
    return ""


@dataclass(frozen=True)
class Root:
    """One cache directory."""

    path: Path
    private: bool = False

    @property
    def entries(self) -> Path:
        """Where the entries lie."""
        return self.path / LAYOUT

    def lock_path(self, folder: str, stem: str) -> Path:
        """Return the lock of one kernel; it lies outside of what `clear` removes."""
        return self.path / "locks" / f"{folder}-{stem}.lock"

    def log_path(self, folder: str, stem: str) -> Path:
        """Return where the log of a failed build is kept."""
        return self.path / "logs" / f"{folder}-{stem}.log"

    def refusal(self) -> str:
        """Return why nothing may be loaded from here; empty if it may, or if it is missing."""
        try:
            return distrust(self.path, follow=True) or self._noexec()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{self.path}: {error.strerror}"

    def _noexec(self) -> str:
        if os.statvfs(self.path).f_flag & getattr(os, "ST_NOEXEC", 0):
            return f"{self.path} is mounted noexec, so no library can be loaded from it"
        return ""

    def prepare(self) -> None:
        """Make the directory ready for a build.

        Raises
        ------
        RootUnusableError
            It cannot be made, trusted, executed from or written.
        """
        try:
            self.path.mkdir(mode=0o700 if self.private else 0o755, parents=True, exist_ok=True)
            reason = self.refusal() or self._swappable()
            for name in (LAYOUT, "locks", "staging", "logs"):
                if not reason:
                    (self.path / name).mkdir(mode=0o755, exist_ok=True)
                    reason = distrust(self.path / name)
        except OSError as error:
            reason = f"{self.path}: {error.strerror or error}"
        if reason:
            raise RootUnusableError(reason)

    def _swappable(self) -> str:
        """In a shared temporary directory, others must not be able to rename ours away."""
        if not self.private:
            return ""
        mode = os.stat(self.path.parent).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{self.path.parent} is writable by all and has no sticky bit"
        return ""

    def new_staging(self, stem: str) -> Path:
        """Create a private directory on the cache's own file system."""
        # Two containers may share a pid, two hosts a directory: all three parts are needed.
        owner = f"{socket.gethostname()}+{os.getpid()}+{secrets.token_hex(6)}"
        path = self.path / "staging" / f"{stem}+{owner}"
        path.parent.mkdir(mode=0o755, exist_ok=True)
        path.mkdir(mode=0o700)
        return path


def candidate_roots(settings: Settings) -> Iterator[Root]:
    """Yield the cache directories in the order in which they are looked at.

    The explicit one, else the user's own; then one in the temporary directory, named by uid.
    """
    chosen = settings.cache_dir or _user_cache(settings)
    if chosen is not None:
        yield Root(chosen)
    # Not tempfile.gettempdir(), which writes a file to find out.
    yield Root(Path(settings.tmpdir or "/tmp") / f"flashinfer_msa-{os.getuid()}", private=True)


def _user_cache(settings: Settings) -> Path | None:
    parent = settings.xdg_cache_home
    if parent and os.path.isabs(parent):
        return Path(parent) / "flashinfer_msa"
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and a uid without a passwd entry
        return None
    return home / ".cache" / "flashinfer_msa" if home.is_dir() else None


def readable_roots(settings: Settings) -> Iterator[Root]:
    """Yield the existing directories that kernels may be loaded from."""
    for root in candidate_roots(settings):
        reason = root.refusal()
        if reason:
            warn_once(f"cache directory not used: {reason}")
        elif root.path.is_dir():
            yield root


def remove_tree(path: Path) -> bool:
    """Remove a directory; a failure is logged, not raised, since nothing depends on it."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        logger.info("cannot remove %s: %s", path, error)
        return False
    return True


def move_aside(root: Root, path: Path) -> Path | None:
    """Take a directory out of the way by one rename; None if it was already gone.

    Raises
    ------
    OSError
        It is there and cannot be moved.
    """
    target = root.new_staging("removed") / path.name
    try:
        os.rename(path, target)
    except FileNotFoundError:
        remove_tree(target.parent)
        return None
    return target.parent


def remove_stale_staging(root: Root, now: float) -> int:
    """Remove what dead builders left behind; return how many directories that were."""
    removed = 0
    folder = root.path / "staging"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        host, pid = ([*path.name.split("+"), "", ""])[1:3]
        dead = pid.isdecimal() and not process_alive(host, int(pid))
        try:
            old = now - path.stat().st_mtime > _STALE_SECONDS
        except FileNotFoundError:
            continue
        if dead or old:
            removed += remove_tree(path)
    return removed
