# SPDX-License-Identifier: Apache-2.0
"""Kernels that bound the selector from below, built by the package's own loader."""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path

import torch

from flashinfer_msa import jit

_SPEC = jit.FileSpec("bench_floor", Path(__file__).with_name("floor.cu"))


class Floor:
    """Enqueue an empty launch, or a read of a tensor's memory, on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        self.sink = torch.zeros(1, device=device)

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded kernels."""
        library = jit.load(_SPEC, torch.cuda.get_device_capability(self.device))
        pointer = ctypes.c_void_p
        library.bench_empty.argtypes = [pointer]
        library.bench_read.argtypes = [
            pointer, ctypes.c_longlong, pointer, ctypes.c_int, pointer
        ]  # fmt: skip
        return library

    def empty(self) -> None:
        """Enqueue a kernel that does nothing."""
        check_launch(self.library.bench_empty(torch.cuda.current_stream().cuda_stream))

    def read(self, scores: torch.Tensor) -> None:
        """Enqueue one read of every score."""
        stream = torch.cuda.current_stream().cuda_stream
        size = scores.numel() * scores.element_size()
        sink = self.sink.data_ptr()
        check_launch(
            self.library.bench_read(scores.data_ptr(), size, sink, self.processors, stream)
        )


def check_launch(error: int) -> None:
    """Raise if a launch failed."""
    if error:
        raise RuntimeError(f"launch failed with CUDA error {error}")
