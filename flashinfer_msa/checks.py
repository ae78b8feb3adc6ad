# SPDX-License-Identifier: Apache-2.0
"""What a caller may get wrong, found before any launch and with nothing written.

Messages name the argument, what was expected and what came. They keep the words that FlashInfer's
own tests look for.
"""

from __future__ import annotations

import torch

from flashinfer_msa.spec import MAX_TOPK

SCORE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_call(
    max_score: torch.Tensor,
    topk: int,
    num_valid_pages: int | torch.Tensor | None,
    force_begin: int,
    force_end: int,
) -> torch.Size:
    """Return the scores' shape; raise ValueError or TypeError if an input breaks the contract."""
    shape = check_score(max_score)
    if type(topk) is not int or not 1 <= topk <= MAX_TOPK:
        check_int("topk", topk, f"in 1..{MAX_TOPK}", 1, MAX_TOPK)
    if type(force_begin) is not int or force_begin < 0:
        check_int("force_begin_blocks", force_begin, ">= 0", 0)
    if type(force_end) is not int or force_end < 0:
        check_int("force_end_blocks", force_end, ">= 0", 0)
    if force_begin + force_end > topk:
        raise ValueError(
            "force_begin_blocks + force_end_blocks must be at most topk, "
            f"got {force_begin} + {force_end} > {topk}"
        )
    if isinstance(num_valid_pages, torch.Tensor):
        check_extents(num_valid_pages, max_score, shape[2])
    elif num_valid_pages is not None:
        check_extent(num_valid_pages, shape[1], force_begin + force_end)
    return shape


def check_score(max_score: torch.Tensor) -> torch.Size:
    """Return the scores' shape; raise unless their rank, dtype and layout are supported."""
    if not isinstance(max_score, torch.Tensor):
        raise TypeError(f"max_score must be a torch.Tensor, got {type(max_score).__name__}")
    shape = max_score.shape
    if len(shape) != 3:
        raise ValueError(
            "max_score must be 3D (num_qo_heads, max_k_tiles, total_qo_len), "
            f"got shape {tuple(shape)}"
        )
    if max_score.dtype not in SCORE_DTYPES:
        raise ValueError(
            f"max_score must be float32, float16 or bfloat16, got dtype {max_score.dtype}"
        )
    if max_score.is_neg():
        raise ValueError("max_score must not be a negated view; copy it with .resolve_neg()")
    _, block_stride, token_stride = max_score.stride()
    if token_stride == 1 or block_stride == 1:
        return shape
    _, blocks, tokens = shape
    if max_score.numel() and blocks > 1 and tokens > 1:
        raise ValueError(
            "max_score must have stride 1 in its last dimension (total_qo_len) or in its middle "
            f"one (max_k_tiles), got strides {max_score.stride()}; copy it with .contiguous()"
        )
    return shape


def check_int(name: str, value: object, expected: str, least: int, most: int | None = None) -> None:
    """Raise ValueError unless `value` is an int (bool is none) of that range."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise ValueError(f"{name} must be an int {expected}, got {value!r}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {expected}, got {value}")


def check_extent(extent: object, blocks: int, forced: int) -> None:
    """Raise unless an extent for all tokens is an int in 1..P that holds all forced blocks."""
    if isinstance(extent, bool) or not isinstance(extent, (int, torch.SymInt)):
        raise TypeError(
            "num_valid_pages must be None, an int or a 1D int32 tensor of length total_qo_len, "
            f"got {type(extent).__name__}"
        )
    if not 1 <= extent <= blocks:
        raise ValueError(f"num_valid_pages must be in 1..max_k_tiles = {blocks}, got {extent}")
    if extent < forced:
        raise ValueError(
            "num_valid_pages must be at least force_begin_blocks + force_end_blocks = "
            f"{forced}, got {extent}"
        )


def check_extents(extents: torch.Tensor, max_score: torch.Tensor, tokens: int) -> None:
    """Raise unless the extents are int32, one for each token, contiguous, beside the scores."""
    if extents.dtype != torch.int32 or extents.dim() != 1:
        raise ValueError(
            "num_valid_pages must be a 1D int32 tensor of length total_qo_len, "
            f"got {extents.dim()}D {extents.dtype}"
        )
    if extents.numel() != tokens:
        raise ValueError(
            f"num_valid_pages must have length total_qo_len = {tokens}, got {extents.shape[0]}"
        )
    if not extents.is_contiguous():
        raise ValueError(f"num_valid_pages must be contiguous, got stride {extents.stride(0)}")
    if extents.device != max_score.device:
        raise ValueError(
            f"num_valid_pages must be on max_score's device {max_score.device}, "
            f"got {extents.device}"
        )


def check_output(
    output: torch.Tensor, max_score: torch.Tensor, shape: torch.Size, topk: int
) -> None:
    """Raise unless `output` has the form that can be written in place; `shape` is the scores'."""
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"output must be a torch.Tensor, got {type(output).__name__}")
    heads, _, tokens = shape
    if output.dtype != torch.int32:
        raise ValueError(f"output must be int32, got dtype {output.dtype}")
    if output.shape != (tokens, heads, topk):
        raise ValueError(
            "output must have shape (total_qo_len, num_qo_heads, topk) = "
            f"{(tokens, heads, topk)}, got {tuple(output.shape)}"
        )
    if output.device != max_score.device:
        raise ValueError(
            f"output must be on max_score's device {max_score.device}, got {output.device}"
        )
    if not output.is_contiguous():
        raise ValueError(f"output must be contiguous, got strides {output.stride()}")


def check_overlap(
    output: torch.Tensor,
    max_score: torch.Tensor,
    shape: torch.Size,
    num_valid_pages: int | torch.Tensor | None,
) -> None:
    """Raise if writing `output` would touch an input: their address ranges must not meet.

    Storages are not compared: two of them may share memory.
    """
    first = output.data_ptr()
    last = first + 4 * output.numel()
    start = max_score.data_ptr()
    if start < last and first < start + bytes_spanned(max_score, shape):
        raise ValueError("output must not overlap the memory of max_score")
    if isinstance(num_valid_pages, torch.Tensor):
        start = num_valid_pages.data_ptr()
        if start < last and first < start + 4 * num_valid_pages.numel():
            raise ValueError("output must not overlap the memory of num_valid_pages")


def bytes_spanned(score: torch.Tensor, shape: torch.Size) -> int:
    """Return how many bytes lie between the scores' first one and the end of their last one."""
    heads, blocks, tokens = shape
    if heads == 0 or blocks == 0 or tokens == 0:
        return 0
    head_stride, block_stride, token_stride = score.stride()
    last = (heads - 1) * head_stride + (blocks - 1) * block_stride + (tokens - 1) * token_stride
    return (last + 1) * score.element_size()
