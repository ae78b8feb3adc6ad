# SPDX-License-Identifier: Apache-2.0
"""A GPU that is the CPU, with a library of Python's: what the host does, without a GPU."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import torch
from test_launch import Library, members_of_call

from flashinfer_msa import jit, launch, plans, topk_select

GPU = -1  # what `get_device` says of the CPU's tensors, which are this GPU's
CHECKS = ("check_call", "check_output", "check_overlap", "launch")
H, P, S, K = 2, 24, 5, 16


class FakeGpu:
    """Its library, its current device and stream, and the steps of the checked way that ran."""

    def __init__(self, monkeypatch: Any) -> None:
        self.library = Library()
        self.current, self.stream = GPU, 0x1234
        self.checked: list[str] = []
        patch = monkeypatch.setattr
        patch(launch, "_ready", {})
        patch(plans, "_plans", {})
        patch(jit, "load", lambda spec, capability: self.library)
        patch(torch.Tensor, "is_cuda", True)
        patch(torch._C, "_cuda_getDevice", lambda: self.current, raising=False)
        stream = "_cuda_getCurrentRawStream"
        patch(torch._C, stream, lambda device: self.stream, raising=False)
        patch(torch.cuda, "device", self.device)
        patch(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch(torch.cuda, "get_device_capability", lambda device: (9, 0))
        for name in CHECKS:
            patch(topk_select, name, self.counted(getattr(topk_select, name)))

    def counted(self, function: Any) -> Any:
        """Return the function, whose calls are noted from now on."""

        def run(*arguments: Any) -> Any:
            self.checked.append(function.__name__)
            return function(*arguments)

        return run

    def calls(self) -> list[dict[str, int]]:
        """Return the members of each call that went to the library."""
        members = members_of_call()
        form = "@" + "".join(members.values())
        return [
            dict(zip(members, struct.unpack(form, packed), strict=True))
            for packed in self.library.calls
        ]

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        """As torch.cuda.device."""
        before, self.current = self.current, index
        yield
        self.current = before


def scores(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return scores of the usual shape."""
    return torch.zeros(H, P, S, dtype=dtype)


def extents() -> torch.Tensor:
    """Return extents for them."""
    return torch.ones(S, dtype=torch.int32)


def outputs(topk: int = K) -> torch.Tensor:
    """Return an output for them."""
    return torch.zeros(S, H, topk, dtype=torch.int32)
