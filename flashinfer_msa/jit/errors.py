# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between a spec and a loaded kernel; every message ends with what to do."""

from __future__ import annotations

from pathlib import Path


class MissingKernelError(RuntimeError):
    """The kernel is neither prebuilt nor cached, and it may not be compiled."""


class ToolchainError(RuntimeError):
    """There is no usable CUDA compiler."""


class CompileError(RuntimeError):
    """The compiler failed.

    Attributes
    ----------
    command : str
        The command that failed, as a shell would take it.
    log_path : Path or None
        The whole output, when it could be kept.
    """

    def __init__(self, message: str, command: str = "", log_path: Path | None = None) -> None:
        super().__init__(message)
        self.command = command
        self.log_path = log_path


class RootUnusableError(Exception):
    """This cache directory cannot take a new entry; the next candidate may."""
