# SPDX-License-Identifier: Apache-2.0
"""The selector's kernels: readied once for a kind of call and GPU, then one foreign call each."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any, NamedTuple

import torch

from flashinfer_msa import jit
from flashinfer_msa.env import Settings
from flashinfer_msa.spec import TopKSelectSpec

DEPENDENT_LAUNCH = 1  # Params::kDependentLaunch of row.cuh

_DTYPE_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# Call of topk_select.cuh. Packed into bytes, which no other thread sees, and whose data Python
# aligns to a pointer. Converting each member as an argument would take 0.9 us longer.
_pack_call = struct.Struct("@4P3q8i").pack
_prepare_lock = threading.Lock()


class Ready(NamedTuple):
    """A build that is ready on one GPU."""

    library: ctypes.CDLL
    select: Any  # its function `topk_select`
    features: int  # that launches use; bits of Params::Feature in row.cuh


# (topk, dtype, force counts, whether each token has its extent, GPU) -> what serves such calls
_ready: dict[tuple[Any, ...], Ready] = {}


def launch(
    score: torch.Tensor,
    shape: torch.Size,
    topk: int,
    extent: int | torch.Tensor | None,
    output: torch.Tensor,
    force_begin: int,
    force_end: int,
) -> None:
    """Launch a call that has been checked, has rows and has blocks; `shape` is the scores'.

    Raises
    ------
    RuntimeError
        The GPU is too old, the kernel can neither be found nor built, or the launch fails.
    """
    device = score.get_device()
    if device != torch._C._cuda_getDevice():  # as torch.cuda.current_device(), which costs more
        with torch.cuda.device(device):
            return launch(score, shape, topk, extent, output, force_begin, force_end)
    heads, blocks, tokens = shape
    if per_token := isinstance(extent, torch.Tensor):
        extents, uniform = extent.data_ptr(), blocks
    else:
        extents, uniform = 0, blocks if extent is None else extent
    key = (topk, score.dtype, force_begin, force_end, per_token, device)
    library, select, features = _ready.get(key) or _prepare(key)
    error = select(
        _pack_call(
            score.data_ptr(),
            extents,
            output.data_ptr(),
            torch._C._cuda_getCurrentRawStream(device),
            *score.stride(),
            heads,
            blocks,
            tokens,
            uniform,
            topk,
            force_begin,
            force_end,
            features,
        )
    )
    if error:
        raise RuntimeError(
            f"msa_topk_select failed to launch for max_score {tuple(shape)} "
            f"on cuda:{device}: {_describe(library, error)}"
        )
    return None


def _prepare(key: tuple[Any, ...]) -> Ready:
    """Find or build the kernel and ready it on the current GPU, which is the key's."""
    topk, dtype, force_begin, force_end, per_token, device = key
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "msa_topk_select cannot load its kernel while a CUDA graph is being captured: make one "
            "call of this kind (topk, dtype, force counts, form of num_valid_pages) on this GPU "
            "before the capture"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise RuntimeError(
            f"msa_topk_select needs compute capability 8.0 or newer, cuda:{device} "
            f"({torch.cuda.get_device_name(device)}) has {capability[0]}.{capability[1]}"
        )
    extent = "token" if per_token else "uniform"
    spec = TopKSelectSpec(topk, _DTYPE_NAMES[dtype], force_begin, force_end, extent)
    library = load_library(spec, capability)
    found = ctypes.c_int32()
    with _prepare_lock:
        error = library.topk_select_prepare(ctypes.byref(found))
    if error:
        raise RuntimeError(
            f"msa_topk_select cannot ready {spec.name} on cuda:{device}: "
            f"{_describe(library, error)}"
        )
    features = found.value if Settings.read().dependent_launch else found.value & ~DEPENDENT_LAUNCH
    _ready[key] = Ready(library, library.topk_select, features)
    return _ready[key]


def load_library(spec: TopKSelectSpec, capability: tuple[int, int]) -> ctypes.CDLL:
    """Return the library of `spec`, or the generic one where `spec` can be neither found nor built.

    Raises
    ------
    RuntimeError
        If neither is to be had; the message says what was looked for and what to do.
    """
    try:
        library = jit.load(spec, capability)
    except (jit.MissingKernelError, jit.ToolchainError) as missing:
        try:
            library = jit.load(spec.generic(), capability)
        except (jit.MissingKernelError, jit.ToolchainError):
            raise missing from None
    library.topk_select_prepare.argtypes = (ctypes.POINTER(ctypes.c_int32),)
    library.topk_select_prepare.restype = ctypes.c_int
    library.topk_select.argtypes = (ctypes.c_char_p,)
    library.topk_select.restype = ctypes.c_int
    library.topk_select_error.argtypes = (ctypes.c_int,)
    library.topk_select_error.restype = ctypes.c_char_p
    return library


def _describe(library: ctypes.CDLL, error: int) -> str:
    return f"{library.topk_select_error(error).decode()} (CUDA error {error})"
