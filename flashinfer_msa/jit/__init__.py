# SPDX-License-Identifier: Apache-2.0
"""Find or build the library of a kernel spec, and load it. Knows nothing of any op."""

from .arch import Arch, Target, parse_arch_list, resolve_target
from .errors import CompileError, MissingKernelError, ToolchainError
from .jobs import job_count
from .loader import Found, build, find, load
from .spec import ABI_SYMBOL, FileSpec, KernelSpec

__all__ = [
    "ABI_SYMBOL",
    "Arch",
    "CompileError",
    "FileSpec",
    "Found",
    "KernelSpec",
    "MissingKernelError",
    "Target",
    "ToolchainError",
    "build",
    "find",
    "job_count",
    "load",
    "parse_arch_list",
    "resolve_target",
]
