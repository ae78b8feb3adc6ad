# SPDX-License-Identifier: Apache-2.0
"""Kernels to run before and after the selector's, built by the package's own loader."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from graphs import StaticCall
from guards import POISON
from scores import LOCAL

from flashinfer_msa import jit
from flashinfer_msa.msa_ops import msa_topk_select

_SPEC = jit.FileSpec("test_producers", Path(__file__).with_name("producers.cu"))
_CYCLES = 100_000  # about 60 us: several launches of the host's


@cache
def load_producers() -> ctypes.CDLL:
    """Find or build the kernels for the current GPU."""
    library = jit.load(_SPEC, torch.cuda.get_device_capability())
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


class ProducedCall:
    """A call whose scores and extents one slow kernel writes just before it."""

    def __init__(self, shape, early: bool, between: int) -> None:
        self.source = StaticCall(shape)
        self.early, self.between = early, between
        count = self.source.scores.numel()
        words = count + self.source.extents.numel()
        self.drawn = torch.zeros(words, dtype=torch.int32, device="cuda")
        self.memory = torch.zeros_like(self.drawn)
        self.scores = self.memory[:count].view(torch.float32).view(shape)
        self.extents = self.memory[count:]
        self.output = torch.zeros_like(self.source.output)
        self.wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def refill(self) -> None:
        """Change what the slow kernel will write, and undo what it wrote."""
        self.source.refill()
        scores = self.source.scores.view(torch.int32).flatten()
        torch.cat([scores, self.source.extents], out=self.drawn)
        self.memory.zero_()
        self.output.fill_(POISON)

    def produce(self) -> None:
        slow_copy(self.memory, self.drawn, self.early)
        for _ in range(self.between):
            pass_on()

    def call(self) -> None:
        self.produce()
        topk, _, begin, end = LOCAL
        msa_topk_select(self.scores, topk, self.extents, self.output, begin, end)

    def count_wrong(self) -> None:
        self.wrong += (self.output != self.source.expected()).any()
