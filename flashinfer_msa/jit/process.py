# SPDX-License-Identifier: Apache-2.0
"""Running a build so that no compiler outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

GRACE_SECONDS = 3.0
_running: set[subprocess.Popen[bytes]] = set()
# Runs in a fresh interpreter, not between fork and exec, where a thread's lock may be held.
# PR_SET_PDEATHSIG (1) makes the kernel stop ninja when we are killed; ninja stops its compilers.
_GUARD = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except (OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)
os.execv(sys.argv[2], sys.argv[2:])
"""


def _guarded(command: list[str]) -> list[str]:
    # An embedding program is no Python to run a script with.
    if not os.path.basename(sys.executable or "").startswith("python"):
        return command
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]


def run_guarded(
    command: list[str], folder: Path, environment: Mapping[str, str], log: IO[bytes]
) -> int:
    """Run a command in a session of its own; whatever happens, nothing of it stays alive.

    Returns
    -------
    int
        The exit status, negative for a signal.
    """
    process = subprocess.Popen(
        _guarded(command),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    _running.add(process)
    try:
        code = process.wait()
    except BaseException:
        _stop(process)
        raise
    finally:
        _running.discard(process)
    if code != 0:
        _kill_session(process.pid)
    return code


def stop_all() -> None:
    """Stop the builds of every thread; the threads then see them fail."""
    for process in list(_running):
        with suppress(OSError):
            process.terminate()


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        process.terminate()  # ninja passes it on to the process group of each compiler
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    _kill_session(process.pid)
    process.wait()


def _kill_session(session: int) -> None:
    """Kill every process of a session; compilers have process groups of their own in it."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                os.kill(int(entry.parent.name), signal.SIGKILL)
