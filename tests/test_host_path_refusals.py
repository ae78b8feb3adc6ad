# SPDX-License-Identifier: Apache-2.0
"""A call that resembles a good one before it is refused as if it came first. Needs no GPU."""

import contextlib
import warnings

import pytest
import torch
from fake_gpu import FakeGpu, H, K, P, S, extents, outputs, scores

from flashinfer_msa import plans
from flashinfer_msa.msa_ops import msa_topk_select


@pytest.fixture
def gpu(monkeypatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def overlapping(other: torch.Tensor, start: int) -> torch.Tensor:
    """Return an output that begins `start` words from the beginning of `other`, in its arena."""
    words = other.untyped_storage().nbytes() // 4
    arena = torch.empty(0, dtype=torch.int32).set_(other.untyped_storage(), 0, (words,))
    first = other.storage_offset() + start
    return arena[first : first + S * H * K].view(S, H, K)


def in_arena(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return some elements with room for an output at either side."""
    room = S * H * K
    return torch.ones(2 * room + count, dtype=dtype)[room : room + count]


def without_strides() -> torch.Tensor:
    """Return a tensor that raises where it is asked for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls these tensors a beta
        return torch.zeros(P, S).to_sparse_csr()


def bad_calls():
    """Return what each change to a good call is, and the words of its refusal."""
    values, extent = in_arena(H * P * S, torch.float32).view(H, P, S), in_arena(S, torch.int32)
    yield "right", {}, None
    for name, least in (("topk", 1), ("force_begin_blocks", 1), ("force_end_blocks", 1)):
        for what in (True, float(least), "1", -1, 65):
            yield f"{name} {what!r}", {name: what}, name.split("_")[0]
    for what in (True, 9.0, 0, P + 1, "9", (S,), [9], torch.Size([S])):
        yield f"extent {what!r}", {"num_valid_pages": what}, "num_valid_pages"
    for what, tensor in {
        "length": torch.ones(S + 1, dtype=torch.int32),
        "rank": torch.ones(S, 1, dtype=torch.int32),
        "dtype": torch.ones(S, dtype=torch.int64),
        "stride": torch.ones(2 * S, dtype=torch.int32)[::2],
        "device": torch.ones(S, dtype=torch.int32, device="meta"),
    }.items():
        yield f"extents' {what}", {"num_valid_pages": tensor}, "num_valid_pages"
    for what, tensor in {
        "type": [[0]],
        "tokens": torch.zeros(S + 1, H, K, dtype=torch.int32),
        "order": torch.zeros(H, S, K, dtype=torch.int32),
        "rank": torch.zeros(S * H, K, dtype=torch.int32),
        "topk": torch.zeros(S, H, K - 1, dtype=torch.int32),
        "dtype": torch.zeros(S, H, K, dtype=torch.int64),
        "stride": torch.zeros(S, H, 2 * K, dtype=torch.int32)[..., ::2],
        "device": torch.zeros(S, H, K, dtype=torch.int32, device="meta"),
    }.items():
        yield f"output's {what}", {"output": tensor}, "output"
    for what, tensor in {
        "rank": torch.zeros(P, S),
        "dtype": torch.zeros(H, P, S, dtype=torch.float64),
        "stride": torch.zeros(H, 2 * P, 2 * S)[:, ::2, ::2],
        "negation": torch._neg_view(torch.zeros(H, P, S)),
        "layout": torch.zeros(P, S).to_sparse(),
        "lack of strides": without_strides(),
    }.items():
        yield f"scores' {what}", {"max_score": tensor}, "max_score"
    for name, tensor in (("max_score", values), ("num_valid_pages", extent)):
        ends = (1 - S * H * K, 0, tensor.numel() - 1)
        for start in ends:
            yield (
                f"output on {name} at {start}",
                {name: tensor, "output": overlapping(tensor, start)},
                rf"output must not overlap the memory of {name}",
            )
        for start in (-S * H * K, tensor.numel()):
            yield (
                f"output beside {name} at {start}",
                {name: tensor, "output": overlapping(tensor, start)},
                None,
            )


BAD_CALLS = {what: (changes, words) for what, changes, words in bad_calls()}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_bad_call_is_refused_after_a_good_one(gpu, what):
    """In the words of a call that no good one was before, and nothing is launched."""
    changes, words = BAD_CALLS[what]
    good = {"max_score": scores(), "topk": K, "num_valid_pages": extents(), "output": outputs()}
    good |= {"force_begin_blocks": 1, "force_end_blocks": 1}
    for extent in (extents(), 9, None, 1):
        with contextlib.suppress(ValueError):
            msa_topk_select(**good | {"num_valid_pages": extent})
            msa_topk_select(**good | {"num_valid_pages": extent, "output": None})
            msa_topk_select(**good | {"num_valid_pages": extent, "force_begin_blocks": 0})
    one = outputs(1)
    msa_topk_select(good["max_score"], 1, good["num_valid_pages"], one, 1, 0)  # for topk=True
    before = len(gpu.library.calls)
    if words is None:
        gpu.checked.clear()
        msa_topk_select(**good | changes)
        assert (gpu.checked, len(gpu.library.calls)) == ([], before + 1)
        return
    said = refusal(good | changes, words)
    assert len(gpu.library.calls) == before
    plans._plans.clear()
    assert said == refusal(good | changes, words)


def refusal(arguments, words: str) -> tuple[type, str]:
    with pytest.raises((ValueError, TypeError), match=words) as raised:
        msa_topk_select(**arguments)
    return raised.type, str(raised.value)


def test_true_is_not_the_one_that_a_plan_knows(gpu):
    output = outputs(1)
    for good in ((1, 1, 1, 0), (1, 1, 0, 1), (1, None, 0, 0)):
        topk, extent, begin, end = good
        msa_topk_select(scores(), topk, extent, output, begin, end)
        for place, value in enumerate(good):
            if value in (0, 1):
                topk, extent, begin, end = (*good[:place], bool(value), *good[place + 1 :])
                with pytest.raises((ValueError, TypeError), match=r"topk|num_valid|force"):
                    msa_topk_select(scores(), topk, extent, output, begin, end)
    assert len(gpu.library.calls) == 3
