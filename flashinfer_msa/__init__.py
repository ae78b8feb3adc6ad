# SPDX-License-Identifier: Apache-2.0
"""Exact, deterministic block selection for MiniMax Sparse Attention.

The public names load on first use, so that ``import flashinfer_msa`` starts no CUDA, touches no
disk and costs next to nothing.
"""

import logging
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "msa_topk_select": "flashinfer_msa.topk_select",
    "msa_topk_select_reference": "flashinfer_msa.reference",
    "TopKSelectSpec": "flashinfer_msa.spec",
    "warmup": "flashinfer_msa.warming",
    "CompileError": "flashinfer_msa.jit",
    "MissingKernelError": "flashinfer_msa.jit",
    "ToolchainError": "flashinfer_msa.jit",
}
__all__ = ["__version__", *_HOME]

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "msa_ops":  # as `import flashinfer` gives `flashinfer.msa_ops`
        return import_module("flashinfer_msa.msa_ops")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
