# SPDX-License-Identifier: Apache-2.0
"""The block selector: checks, then one launch (or the reference, for CPU tensors)."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

from flashinfer_msa import jit
from flashinfer_msa.checks import check_call, check_output, check_overlap
from flashinfer_msa.reference import msa_topk_select_reference
from flashinfer_msa.spec import TopKSelectSpec

_DTYPE_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_int, _long, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS: tuple[Any, ...] = (*[_pointer] * 3, *[_int] * 3, *[_long] * 3, *[_int] * 4, _pointer)

# (topk, dtype, force counts, extent form, GPU) -> the library, ready on that GPU.
_libraries: dict[tuple[Any, ...], ctypes.CDLL] = {}
_prepare_lock = threading.Lock()


def msa_topk_select(
    max_score: torch.Tensor,
    topk: int,
    num_valid_pages: int | torch.Tensor | None = None,
    output: torch.Tensor | None = None,
    force_begin_blocks: int = 0,
    force_end_blocks: int = 0,
) -> torch.Tensor:
    r"""Select the ``topk`` best KV blocks of every query token and index head.

    This is the block-scoring pass of MiniMax Sparse Attention: a cheap proxy pass has found, for
    each query token and head, the largest attention logit inside every block of KV tokens; this op
    picks the blocks that the attention kernel shall read, as ascending ids so that it visits
    memory in order. The choice is exact on every input and deterministic: the same bits from run
    to run, on every GPU, for a row alone or in any batch.

    Parameters
    ----------
    max_score : torch.Tensor
        Shape ``(num_qo_heads, max_k_tiles, total_qo_len)``, dtype float32, float16 or bfloat16.
        Largest logit of each block. The caller writes ``-inf`` into blocks that must not be
        chosen: those past the KV length or above the causal limit. Either the last dimension or
        the middle one has stride 1 (the latter is the permuted view of a contiguous
        ``(num_qo_heads, total_qo_len, max_k_tiles)`` tensor); the other strides are free.
    topk : int
        Blocks to choose for each row, 1 to 64 (16 in MiniMax-M3).
    num_valid_pages : int, torch.Tensor or None, optional
        How many blocks exist: one int for all tokens (1 to ``max_k_tiles``, and not below
        ``force_begin_blocks + force_end_blocks``), or an int32 tensor of shape
        ``(total_qo_len,)`` on the same device with each token's own causal extent, clamped to
        ``0 .. max_k_tiles`` by the kernel. ``None`` means ``max_k_tiles``. Scores at or past the
        extent are never looked at, whatever they hold.
    output : torch.Tensor, optional
        Contiguous int32 ``(total_qo_len, num_qo_heads, topk)``, written in place and returned.
        Allocated when None.
    force_begin_blocks : int, optional
        Blocks at the start (attention sinks) that are chosen whatever their score. Default 0.
    force_end_blocks : int, optional
        Blocks at the end of the extent (the local window) that are chosen whatever their score.
        Default 0. At most ``topk`` together with `force_begin_blocks`; a row whose extent is
        shorter than both keeps the first ones first, each block once.

    Returns
    -------
    torch.Tensor
        Shape ``(total_qo_len, num_qo_heads, topk)``, dtype int32: ascending block ids, then ``-1``
        where fewer than ``topk`` blocks could be chosen. Every slot is written.

    Raises
    ------
    ValueError
        If an argument is not as described above. Nothing has been launched or written then.
    TypeError
        If `max_score` or `output` is not a tensor, or `num_valid_pages` none of its three forms.
    RuntimeError
        If the GPU is older than compute capability 8.0, the kernel can neither be found nor
        built, or the launch fails.

    Notes
    -----
    Scores compare as IEEE numbers: ``-0.0`` equals ``+0.0``, subnormals count, ties go to the
    lower block id. NaN of either sign counts as ``+inf``. A block with score ``-inf`` is chosen
    only if forced.

    A call makes no host synchronisation and no allocation besides `output`. It may be captured in
    a CUDA graph, and extents and scores changed in place between replays, once the same kind of
    call has run outside capture. CPU tensors take
    :func:`flashinfer_msa.reference.msa_topk_select_reference`. ``torch.compile`` and fake tensors
    see the custom ops ``flashinfer_msa::topk_select`` and ``flashinfer_msa::topk_select_out``.

    Examples
    --------
    >>> score = torch.tensor([[[0.5], [2.0], [1.0], [3.0]]])  # one head, four blocks, one token
    >>> msa_topk_select(score, 2)
    tensor([[[1, 3]]], dtype=torch.int32)
    """
    if torch.compiler.is_compiling() or _is_abstract(max_score):
        return _through_dispatcher(
            max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks
        )
    return _select(max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks)


def _select(
    score: torch.Tensor,
    topk: int,
    extent: int | torch.Tensor | None,
    output: torch.Tensor | None,
    force_begin: int,
    force_end: int,
) -> torch.Tensor:
    """Check and answer a call on tensors that have memory."""
    check_call(score, topk, extent, force_begin, force_end)
    if output is None:
        heads, _, tokens = score.shape
        output = torch.empty((tokens, heads, topk), dtype=torch.int32, device=score.device)
    else:
        check_output(output, score, topk)
        check_overlap(output, score, extent)
    if score.is_cuda:
        _launch(score, topk, extent, output, force_begin, force_end)
    else:
        answer = msa_topk_select_reference(score.detach(), topk, extent, force_begin, force_end)
        output.copy_(answer)
    return output


def _launch(
    score: torch.Tensor,
    topk: int,
    extent: int | torch.Tensor | None,
    output: torch.Tensor,
    force_begin: int,
    force_end: int,
) -> None:
    heads, blocks, tokens = score.shape
    if not heads or not tokens:
        return
    if blocks == 0:
        output.fill_(-1)
        return
    per_token = isinstance(extent, torch.Tensor)
    device = score.get_device()
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _launch(score, topk, extent, output, force_begin, force_end)
    key = (topk, score.dtype, force_begin, force_end, per_token, device)
    library = _libraries.get(key) or _prepare(key)
    error = library.topk_select(
        score.data_ptr(),
        extent.data_ptr() if isinstance(extent, torch.Tensor) else None,
        output.data_ptr(),
        heads,
        blocks,
        tokens,
        *score.stride(),
        extent if isinstance(extent, int) else blocks,
        topk,
        force_begin,
        force_end,
        torch._C._cuda_getCurrentRawStream(device),
    )
    if error:
        raise RuntimeError(
            f"msa_topk_select failed to launch for max_score {tuple(score.shape)} "
            f"on cuda:{device}: {_describe(library, error)}"
        )
    return None


def _prepare(key: tuple[Any, ...]) -> ctypes.CDLL:
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
    with _prepare_lock:
        error = library.topk_select_prepare()
    if error:
        raise RuntimeError(
            f"msa_topk_select cannot ready {spec.name} on cuda:{device}: "
            f"{_describe(library, error)}"
        )
    _libraries[key] = library
    return library


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
    library.topk_select.argtypes = _ARGUMENTS
    library.topk_select.restype = ctypes.c_int
    library.topk_select_error.argtypes = (ctypes.c_int,)
    library.topk_select_error.restype = ctypes.c_char_p
    return library


def _describe(library: ctypes.CDLL, error: int) -> str:
    return f"{library.topk_select_error(error).decode()} (CUDA error {error})"


def _is_abstract(tensor: object) -> bool:
    """Whether the tensor has no memory of its own to read: fake, meta, or another subclass."""
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        return tensor.is_meta
    return isinstance(tensor, torch.Tensor)


def _through_dispatcher(
    score: torch.Tensor,
    topk: int,
    extent: int | torch.Tensor | None,
    output: torch.Tensor | None,
    force_begin: int,
    force_end: int,
) -> torch.Tensor:
    extents = extent if isinstance(extent, torch.Tensor) else None
    uniform = None if isinstance(extent, torch.Tensor) else extent
    if output is None:
        chosen: torch.Tensor = _topk_select(score, topk, extents, uniform, force_begin, force_end)
        return chosen
    _topk_select_out(score, topk, extents, uniform, output, force_begin, force_end)
    return output


@torch.library.custom_op("flashinfer_msa::topk_select", mutates_args=())
def _topk_select(
    max_score: torch.Tensor,
    topk: int,
    extents: torch.Tensor | None,
    extent: int | None,
    force_begin_blocks: int,
    force_end_blocks: int,
) -> torch.Tensor:
    pages = extent if extents is None else extents
    return _select(max_score, topk, pages, None, force_begin_blocks, force_end_blocks)


@_topk_select.register_fake
def _(
    max_score: torch.Tensor,
    topk: int,
    extents: torch.Tensor | None,
    extent: int | None,
    force_begin_blocks: int,
    force_end_blocks: int,
) -> torch.Tensor:
    pages = extent if extents is None else extents
    check_call(max_score, topk, pages, force_begin_blocks, force_end_blocks)
    heads, _, tokens = max_score.shape
    return max_score.new_empty((tokens, heads, topk), dtype=torch.int32)


@torch.library.custom_op("flashinfer_msa::topk_select_out", mutates_args=("output",))
def _topk_select_out(
    max_score: torch.Tensor,
    topk: int,
    extents: torch.Tensor | None,
    extent: int | None,
    output: torch.Tensor,
    force_begin_blocks: int,
    force_end_blocks: int,
) -> None:
    pages = extent if extents is None else extents
    _select(max_score, topk, pages, output, force_begin_blocks, force_end_blocks)


@_topk_select_out.register_fake
def _(
    max_score: torch.Tensor,
    topk: int,
    extents: torch.Tensor | None,
    extent: int | None,
    output: torch.Tensor,
    force_begin_blocks: int,
    force_end_blocks: int,
) -> None:
    pages = extent if extents is None else extents
    check_call(max_score, topk, pages, force_begin_blocks, force_end_blocks)
    check_output(output, max_score, topk)
