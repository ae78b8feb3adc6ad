# SPDX-License-Identifier: Apache-2.0
"""The block selector: checks, then one launch (or the reference, for CPU tensors).

A call of a form that was checked before takes the short way of `plans.py`.
"""

from __future__ import annotations

import torch

from flashinfer_msa.checks import check_call, check_output, check_overlap
from flashinfer_msa.launch import Plan, launch
from flashinfer_msa.plans import select_by_plan
from flashinfer_msa.reference import msa_topk_select_reference


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
        extent have no effect, whatever they hold.
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
    if torch.compiler.is_compiling():
        return _through_dispatcher(
            max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks
        )
    return select_by_plan(
        max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks, _select_any
    )


def _select_any(
    score: torch.Tensor,
    topk: int,
    extent: int | torch.Tensor | None,
    output: torch.Tensor | None,
    force_begin: int,
    force_end: int,
) -> tuple[torch.Tensor, Plan | None]:
    """Answer a call on tensors that may have no memory."""
    if _is_abstract(score):
        answer = _through_dispatcher(score, topk, extent, output, force_begin, force_end)
        return answer, None
    return _select(score, topk, extent, output, force_begin, force_end)


def _select(
    score: torch.Tensor,
    topk: int,
    extent: int | torch.Tensor | None,
    output: torch.Tensor | None,
    force_begin: int,
    force_end: int,
) -> tuple[torch.Tensor, Plan | None]:
    """Check and answer a call on tensors that have memory; return a plan if it was launched."""
    shape = check_call(score, topk, extent, force_begin, force_end)
    heads, blocks, tokens = shape
    if output is None:
        output = torch.empty(tokens, heads, topk, dtype=torch.int32, device=score.device)
    else:
        check_output(output, score, shape, topk)
        check_overlap(output, score, shape, extent)
    if not score.is_cuda:
        answer = msa_topk_select_reference(score.detach(), topk, extent, force_begin, force_end)
        output.copy_(answer)
    elif blocks == 0:
        output.fill_(-1)
    elif heads and tokens:
        return output, launch(score, shape, topk, extent, output, force_begin, force_end)
    return output, None


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
    return select_by_plan(
        max_score, topk, pages, None, force_begin_blocks, force_end_blocks, _select
    )


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
    heads, _, tokens = check_call(max_score, topk, pages, force_begin_blocks, force_end_blocks)
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
    select_by_plan(max_score, topk, pages, output, force_begin_blocks, force_end_blocks, _select)


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
    shape = check_call(max_score, topk, pages, force_begin_blocks, force_end_blocks)
    check_output(output, max_score, shape, topk)
