# SPDX-License-Identifier: Apache-2.0
"""Kernels to run before and after the selector's, built by the package's own loader."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from flashinfer_msa import jit

_SOURCE = Path(__file__).with_name("producers.cu")
_CYCLES = 100_000  # about 60 us: several launches of the host's


@dataclass(frozen=True)
class ProducersSpec:
    """The one specialisation of ``producers.cu``."""

    name: str = "test_producers"
    abi: int = 1

    def sources(self) -> dict[str, str]:
        """Return the translation unit."""
        return {_SOURCE.name: _SOURCE.read_text()}


@cache
def load_producers() -> ctypes.CDLL:
    """Find or build the kernels for the current GPU."""
    library = jit.load(ProducersSpec(), torch.cuda.get_device_capability())
    pointer, number = ctypes.c_void_p, ctypes.c_longlong
    library.producers_slow_copy.argtypes = [
        pointer, pointer, number, number, ctypes.c_int, pointer
    ]  # fmt: skip
    library.producers_pass_on.argtypes = [pointer]
    return library


def slow_copy(to: torch.Tensor, source: torch.Tensor, early: bool) -> None:
    """Copy words on the current stream, late; where `early`, the next kernel may start before."""
    for tensor in (to, source):
        assert tensor.is_contiguous()
        assert (tensor.element_size(), tensor.numel()) == (4, to.numel())
    stream = torch.cuda.current_stream().cuda_stream
    error = load_producers().producers_slow_copy(
        to.data_ptr(), source.data_ptr(), to.numel(), _CYCLES, early, stream
    )
    assert error == 0, f"CUDA error {error}"


def pass_on() -> None:
    """Run a kernel that waits for nothing and lets the next one start; none before 9.0."""
    if torch.cuda.get_device_capability() >= (9, 0):
        error = load_producers().producers_pass_on(torch.cuda.current_stream().cuda_stream)
        assert error == 0, f"CUDA error {error}"
