# SPDX-License-Identifier: Apache-2.0
"""Having kernels ready before the first request needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from flashinfer_msa import jit
from flashinfer_msa.env import Settings
from flashinfer_msa.jit.process import stop_all

_UNITS_PER_KERNEL = 3  # translation units that ninja compiles side by side for one kernel


class Warmed(NamedTuple):
    """One kernel that is ready now, and how long that took."""

    spec: jit.KernelSpec
    capability: tuple[int, int]
    seconds: float


def visible_capabilities() -> list[tuple[int, int]]:
    """Return the compute capabilities of the visible GPUs, each once; empty without a GPU."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    devices = range(torch.cuda.device_count())
    return sorted({torch.cuda.get_device_capability(index) for index in devices})


def _timed_load(spec: jit.KernelSpec, capability: tuple[int, int]) -> Warmed:
    began = time.monotonic()
    jit.load(spec, capability)
    return Warmed(spec, capability, time.monotonic() - began)


def warmup(
    specs: Iterable[Any] | None = None,
    capabilities: Iterable[tuple[int, int]] | None = None,
    progress: Callable[[Warmed], None] | None = None,
) -> list[Warmed]:
    """Load kernels, building those that are missing; afterwards no call compiles them.

    Parameters
    ----------
    specs : iterable of TopKSelectSpec, optional
        The common specialisations when omitted.
    capabilities : iterable of (major, minor), optional
        Those of the visible GPUs when omitted.
    progress : callable, optional
        Called in this thread with each `Warmed`, as kernels become ready.

    Returns
    -------
    list of Warmed
        In the order of the arguments.

    Raises
    ------
    RuntimeError
        There is no GPU and no capability was given, or a kernel cannot be had; the others are
        finished first.
    """
    if specs is None:
        from flashinfer_msa.spec import common_specs

        specs = common_specs()
    specs = list(specs)
    wanted = list(visible_capabilities() if capabilities is None else capabilities)
    if not wanted:
        raise RuntimeError("no GPU is visible; name the compute capabilities to warm up for")
    return _load_all([(spec, capability) for capability in wanted for spec in specs], progress)


def _load_all(
    pairs: list[tuple[Any, tuple[int, int]]], progress: Callable[[Warmed], None] | None
) -> list[Warmed]:
    jobs = job_limit(Settings.read())
    with ThreadPoolExecutor(jobs, thread_name_prefix="flashinfer_msa") as pool:
        futures = [pool.submit(_timed_load, *pair) for pair in pairs]
        try:
            for future in as_completed(futures):
                if progress is not None and future.exception() is None:
                    progress(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()  # or Ctrl-C would wait for the compilers
            raise
    return [future.result() for future in futures]


def job_limit(settings: Settings) -> int:
    """Return how many kernels to build side by side, each with its own compilers."""
    return max(1, jit.job_count(settings.max_jobs) // _UNITS_PER_KERNEL)
