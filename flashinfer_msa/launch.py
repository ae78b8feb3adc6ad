# SPDX-License-Identifier: Apache-2.0
"""The selector's kernels: readied once for a kind of call and GPU, then one foreign call each.

A plan is what a checked call leaves for the calls like it: all but the addresses and the stream.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any, NamedTuple

import torch

from flashinfer_msa import jit
from flashinfer_msa.checks import bytes_spanned
from flashinfer_msa.env import Settings
from flashinfer_msa.spec import TopKSelectSpec

DEPENDENT_LAUNCH = 1  # Params::kDependentLaunch of row.cuh

_DTYPE_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# Call of topk_select.cuh: its pointers, then its other members, which a plan keeps packed. Packed
# into bytes, which no other thread sees, and whose data Python aligns to a pointer. Converting each
# member as an argument would take 0.9 us longer.
_pack_members = struct.Struct("@3q8i").pack
pack_call = struct.Struct("@4P56s").pack
_prepare_lock = threading.Lock()


class Ready(NamedTuple):
    """A build that is ready on one GPU."""

    library: ctypes.CDLL
    select: Any  # its function `topk_select`
    features: int  # that launches use; bits of Params::Feature in row.cuh


class Plan(NamedTuple):
    """What calls share that differ in addresses and stream alone; it holds no tensor.

    Nothing here goes stale: a build stays ready for the life of the process.
    """

    ready: Ready
    select: Any  # `ready.select`; one step less on a call's way
    members: bytes  # of Call, after its pointers
    device: int
    shape: torch.Size  # of the scores
    score_bytes: int  # that the scores span
    extents_bytes: int
    output_bytes: int


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
) -> Plan:
    """Launch a call that has been checked, has rows and has blocks; `shape` is the scores'.

    Returns
    -------
    Plan
        Which serves any call of the same form.

    Raises
    ------
    RuntimeError
        The GPU is too old, the kernel can neither be found nor built, or the launch fails.
    """
    device = score.get_device()
    if device != torch._C._cuda_getDevice():  # as torch.cuda.current_device(), which costs more
        with torch.cuda.device(device):
            return launch(score, shape, topk, extent, output, force_begin, force_end)
    plan = _plan(score, shape, topk, extent, force_begin, force_end)
    extents = extent.data_ptr() if isinstance(extent, torch.Tensor) else 0
    stream = torch._C._cuda_getCurrentRawStream(device)
    call = pack_call(score.data_ptr(), extents, output.data_ptr(), stream, plan.members)
    if error := plan.select(call):
        raise launch_error(plan, error)
    return plan


def launch_error(plan: Plan, error: int) -> RuntimeError:
    """Return what to raise when the plan's function answers `error`."""
    return RuntimeError(
        f"msa_topk_select failed to launch for max_score {tuple(plan.shape)} "
        f"on cuda:{plan.device}: {_describe(plan.ready.library, error)}"
    )


def _plan(
    score: torch.Tensor,
    shape: torch.Size,
    topk: int,
    extent: int | torch.Tensor | None,
    force_begin: int,
    force_end: int,
) -> Plan:
    heads, blocks, tokens = shape
    device = score.get_device()
    per_token = isinstance(extent, torch.Tensor)
    key = (topk, score.dtype, force_begin, force_end, per_token, device)
    ready = _ready.get(key) or _prepare(key)
    members = _pack_members(
        *score.stride(),
        heads,
        blocks,
        tokens,
        blocks if per_token or extent is None else extent,
        topk,
        force_begin,
        force_end,
        ready.features,
    )
    return Plan(
        ready,
        ready.select,
        members,
        device,
        shape,
        score_bytes=bytes_spanned(score, shape),
        extents_bytes=4 * tokens if per_token else 0,
        output_bytes=4 * tokens * heads * topk,
    )


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
