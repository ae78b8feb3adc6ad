# SPDX-License-Identifier: Apache-2.0
"""Reads alone, as the kernels of some shapes read: what the time of those cannot fall below."""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path

import torch

from bench_lib.cases import Case
from bench_lib.floor import check_launch
from flashinfer_msa import jit

_SPEC = jit.FileSpec("bench_limit", Path(__file__).with_name("limit.cu"))
_PER_WARP, _BY_HALVES, _PER_LANE, _PER_LANE_WIDER = range(4)  # of bench_limit()


def kernel_of(case: Case) -> int | None:
    """Return which of the kernels of ``limit.cu`` reads as the case's own does, if one does."""
    rows, warps = case.heads * case.tokens, case.heads * (case.tokens // 32)
    if not case.is_standard or case.order != "S" or case.tokens % 32:
        return None
    if case.blocks == 512 and 64 <= rows < 768:
        return _PER_WARP
    if case.blocks == 8192 and 384 <= rows <= 1056:
        return _BY_HALVES
    if case.blocks >= 512 and warps >= 133:
        return _PER_LANE if warps >= 400 else _PER_LANE_WIDER if warps < 265 else None
    return None


class Limit:
    """Enqueue the reads of a case on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded kernels."""
        library = jit.load(_SPEC, torch.cuda.get_device_capability(self.device))
        pointer, number = ctypes.c_void_p, ctypes.c_int
        library.bench_limit.argtypes = [pointer, pointer, *[number] * 4, pointer]
        return library

    def read(self, scores: torch.Tensor, output: torch.Tensor, kernel: int) -> None:
        """Enqueue the reads of all scores, and writes of the whole output."""
        stream = torch.cuda.current_stream().cuda_stream
        check_launch(
            self.library.bench_limit(
                scores.data_ptr(), output.data_ptr(), *scores.shape, kernel, stream
            )
        )
