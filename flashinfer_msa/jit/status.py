# SPDX-License-Identifier: Apache-2.0
"""A description of the machine and the cache, for people and for `--json`."""

from __future__ import annotations

import os
import platform
from typing import Any

from .. import env
from ..env import Settings
from . import aot
from .compiler import find_ninja
from .errors import ToolchainError
from .jobs import job_count
from .maintain import all_entries, tree_size
from .roots import candidate_roots
from .toolchain import find_toolchain, search_places


def describe_toolchain(settings: Settings) -> dict[str, Any]:
    """Return the places where nvcc is looked for, and the compilers chosen."""
    places = [
        {"where": where, "nvcc": str(nvcc) if nvcc is not None and nvcc.is_file() else "not found"}
        for where, nvcc in search_places(settings)
    ]
    told: dict[str, Any] = {"places": places}
    try:
        toolchain = find_toolchain(settings)
        told |= {"nvcc": str(toolchain.nvcc), "from": toolchain.origin}
        told |= {"host_compiler": str(toolchain.host or "by flags")}
        told |= {"release": toolchain.release, "identity": toolchain.identity}
    except (ToolchainError, OSError) as error:
        told["error"] = str(error)
    try:
        told["ninja"] = find_ninja()
    except ToolchainError as error:
        told["ninja"] = f"not found: {error}"
    return told


def describe_wheel() -> dict[str, Any]:
    """Return the installed wheel of prebuilt kernels, and whether it matches this package."""
    wheel = aot.find_wheel()
    if wheel is None:
        return {"found": False}
    told = {key: wheel.manifest.get(key) for key in ("package_version", "toolkit", "machine")}
    kernels = len(wheel.manifest.get("artifacts", ()))
    matches = not wheel.mismatch
    told |= {"found": True, "path": str(wheel.path), "matches": matches, "kernels": kernels}
    return told | ({"mismatch": wheel.mismatch} if wheel.mismatch else {})


def describe_roots(settings: Settings) -> list[dict[str, Any]]:
    """Return the candidate cache directories and what is in them."""
    told = []
    for root in candidate_roots(settings):
        refusal = root.refusal()
        state = refusal or ("in use" if root.path.is_dir() else "not there yet")
        paths = [path for path, _ in all_entries(root)] if root.path.is_dir() else []
        size = sum(tree_size(path) for path in paths)
        told.append({"path": str(root.path), "state": state, "entries": len(paths), "bytes": size})
    return told


def describe(settings: Settings) -> dict[str, Any]:
    """Return all that bears on finding or building a kernel on this machine."""
    names = [variable.name for variable in env.VARIABLES]
    return {
        "version": env.package_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "include_dir": str(env.include_dir()),
        "template_dir": str(env.template_dir()),
        "source_hash": aot.source_hash(),
        "toolchain": describe_toolchain(settings),
        "jobs": job_count(settings.max_jobs),
        "cache": describe_roots(settings),
        "wheel": describe_wheel(),
        "environment": {name: os.environ[name] for name in names if name in os.environ},
    }
