# SPDX-License-Identifier: Apache-2.0
"""The short way of a warm call: what was found of a call's form once is not asked again.

A call's form is all that its checks look at but addresses. The first call of a form is checked and
leaves a plan; those after it look that up, compare addresses and launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashinfer_msa.launch import Plan, launch_error, pack_call

Form = tuple[Any, ...]

# A server meets ever new forms: each number of tokens is one. All are forgotten at this many, which
# is some MB, and checked once more when they come again.
MAX_PLANS = 4096

# Threads share it: each step on it is one operation of the dict.
_plans: dict[Form | None, Plan] = {}

_INT32 = torch.int32


def select_by_plan(
    score: Tensor,
    topk: int,
    extent: int | Tensor | None,
    output: Tensor | None,
    force_begin: int,
    force_end: int,
    select_checked: Callable[..., tuple[Tensor, Plan | None]],
) -> Tensor:
    """Answer a call by the plan of its form; where that cannot be, by `select_checked`.

    It returns the answer, and a plan if the call was launched.
    """
    form = _form(score, topk, extent, output, force_begin, force_end)
    plan = _plans.get(form)
    if plan is not None and plan.device == torch._C._cuda_getDevice():
        _, launch, members, device, shape, score_bytes, extents_bytes, output_bytes = plan
        if output is None:
            heads, _, tokens = shape  # three numbers, not one tuple: that is 0.3 us less
            answer = torch.empty(tokens, heads, topk, dtype=_INT32, device=score.device)
        else:
            answer = output
        scores, start = score.data_ptr(), answer.data_ptr()
        extents = extent.data_ptr() if type(extent) is Tensor else 0
        end = start + output_bytes
        # As check_overlap, which raises what is wrong.
        if (end <= scores or scores + score_bytes <= start) and (
            end <= extents or extents + extents_bytes <= start
        ):
            stream = torch._C._cuda_getCurrentRawStream(device)
            if error := launch(pack_call(scores, extents, start, stream, members)):
                raise launch_error(plan, error)
            return answer
    answer, plan = select_checked(score, topk, extent, output, force_begin, force_end)
    if form is not None and plan is not None:
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[form] = plan
    return answer


def _form(
    score: Tensor,
    topk: int,
    extent: int | Tensor | None,
    output: Tensor | None,
    force_begin: int,
    force_end: int,
) -> Form | None:
    """Return what a plan is found by, or None for a call that no plan may serve.

    Types are compared with `is`: a subclass may mean anything, and True equals 1.
    """
    if (
        type(score) is not Tensor
        or type(topk) is not int
        or type(force_begin) is not int
        or type(force_end) is not int
    ):
        return None
    try:
        device = score.device
        extent_form: int | torch.Size | None
        output_form: torch.Size | None = None
        if type(extent) is Tensor:
            if extent.dtype is not _INT32 or not extent.is_contiguous() or extent.device != device:
                return None
            extent_form = extent.shape
        elif extent is None or type(extent) is int:
            extent_form = extent
        else:
            return None
        if output is not None:
            if type(output) is not Tensor or output.dtype is not _INT32:
                return None
            if not output.is_contiguous() or output.device != device:
                return None
            output_form = output.shape
        if score.is_neg():
            return None
        return (
            device,
            score.dtype,
            score.shape,
            score.stride(),
            topk,
            extent_form,
            output_form,
            force_begin,
            force_end,
        )
    except RuntimeError:  # a sparse tensor has no strides
        return None
