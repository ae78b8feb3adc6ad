# SPDX-License-Identifier: Apache-2.0
"""An advisory lock that saves duplicate work and is never needed for correctness.

So no state of it may stop a caller. A waiter goes on without the lock when it cannot be used, when
no living holder is on record, or when the time is over. This also makes the outcome independent of
filelock's version: some delete the file on release, some fall back to an existence lock that
outlives its holder, some report an unsupported file system as contention.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .log import logger

if TYPE_CHECKING:
    from filelock import BaseFileLock

FIRST_REPORT, REPORT_EVERY = 3.0, 10.0
GHOST_PATIENCE = 4.0  # how long the lock may be taken with no living holder on record
_held = threading.local()
_orphans: list[Any] = []
_owned: set[Any] = set()


def _keep_parents_locks() -> None:
    # A child that finalises its copy of a lock would release the parent's.
    _orphans.extend(_owned)
    _owned.clear()
    _held.paths = set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_parents_locks)


def _start_time(pid: int) -> str:
    """Return when a process started, so that a reused pid is not taken for the holder."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def process_alive(host: object, pid: object, start: object = "") -> bool:
    """Tell whether a process lives; one on another host counts as alive."""
    if host != socket.gethostname() or not isinstance(pid, int):
        return host != socket.gethostname()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's process
    return not start or _start_time(pid) in ("", start)


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".holder")


def read_holder(path: Path) -> dict[str, Any] | None:
    """Return host, pid and start time of the last holder on record, if it lives."""
    try:
        record = json.loads(_record_path(path).read_text("utf-8"))
        alive = process_alive(record["host"], record["pid"], record["start"])
        return record if alive else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_record(path: Path) -> None:
    pid = os.getpid()
    record = {"host": socket.gethostname(), "pid": pid, "start": _start_time(pid)}
    record["since"] = time.time()
    draft = path.with_name(f"{path.name}.{record['host']}-{pid}-{threading.get_ident()}")
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(record), "utf-8")
        draft.chmod(0o644)
        os.replace(draft, _record_path(path))


def _try(lock: BaseFileLock) -> bool:
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


class _Wait:
    """Decides how long a taken lock is waited for, and tells the user meanwhile."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self.start = time.monotonic()
        self.deadline = self.start + timeout
        self.timeout = timeout
        self.next_report = self.start + FIRST_REPORT
        self.last_seen_alive = self.start

    def should_go_on(self) -> bool:
        now = time.monotonic()
        holder = read_holder(self.path)
        if holder is not None:
            self.last_seen_alive = now
        if now - self.last_seen_alive > GHOST_PATIENCE:
            logger.warning("%s is taken, but by no living process; building without it", self.path)
            return False
        if now >= self.deadline:
            logger.warning(
                "waited %.0f s (FLASHINFER_MSA_LOCK_TIMEOUT) for %s, held by %s; building too",
                self.timeout,
                self.path,
                _describe(holder),
            )
            return False
        if now >= self.next_report:
            self.next_report = now + REPORT_EVERY
            waited = now - self.start
            held_by = _describe(holder)
            logger.warning("waiting for %s, held by %s, for %.0f s", self.path, held_by, waited)
        return True


def _describe(holder: dict[str, Any] | None) -> str:
    return "an unknown process" if holder is None else f"pid {holder['pid']} on {holder['host']}"


def _acquire(path: Path, timeout: float) -> BaseFileLock | None:
    from filelock import FileLock

    wait = _Wait(path, timeout)
    pause = 0.02
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(path), mode=0o644)
        while not _try(lock):
            if not wait.should_go_on():
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.25)
        return lock
    except (OSError, NotImplementedError, RuntimeError) as error:
        logger.info("%s cannot be locked (%s); building without it", path, error)
        return None


@contextlib.contextmanager
def hold(path: Path, timeout: float) -> Iterator[bool]:
    """Hold the lock `path` for a block; yield False when the block runs without it.

    Re-entrant in a thread. The file is never deleted by this function, and the kernel frees it
    when the holder dies.
    """
    paths = _held.__dict__.setdefault("paths", set())
    lock = None if path in paths else _acquire(path, timeout)
    if lock is None:
        yield path in paths
        return
    owner = os.getpid()
    _write_record(path)
    paths.add(path)
    _owned.add(lock)
    try:
        yield True
    finally:
        if os.getpid() == owner:
            paths.discard(path)
            _owned.discard(lock)
            with contextlib.suppress(OSError):
                _record_path(path).unlink()
            with contextlib.suppress(OSError, RuntimeError):
                lock.release()
