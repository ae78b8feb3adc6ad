# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise before anything is launched or written, and the message helps."""

import numpy as np
import pytest
import torch
from guards import POISON
from scores import draw, tokens

from flashinfer_msa.msa_ops import msa_topk_select

H, P, S = 2, 24, 5
NOT_INTS = [16.0, "16", None, True, False, [16], torch.tensor(16.5)]


def call(device, **changes):
    """Make a right call with `changes`, and see that nothing is written if it raises."""
    arguments = {"max_score": draw("normal", (H, P, S), device=device), "topk": 16}
    arguments["output"] = torch.full((S, H, 16), POISON, dtype=torch.int32, device=device)
    arguments.update(changes)
    output = arguments["output"]
    tensors = [t for t in arguments.values() if isinstance(t, torch.Tensor) and not t.is_meta]
    watched = [t for t in tensors if t.dtype.itemsize > 1]  # float8 cannot be compared everywhere
    before = [t.clone() for t in watched]
    try:
        return msa_topk_select(**arguments)
    except Exception:
        if isinstance(output, torch.Tensor) and output.is_cuda:
            torch.cuda.synchronize()
        for now, then in zip(watched, before, strict=True):
            assert torch.equal(now, then), "written before the error"
        raise


def test_the_call_that_the_others_change_is_right(device):
    assert call(device).ge(0).all()


SCORES = {
    "rank 2": (lambda: torch.zeros(P, S), ValueError),
    "rank 4": (lambda: torch.zeros(1, H, P, S), ValueError),
    "rank 0": (lambda: torch.zeros(()), ValueError),
    "float64": (lambda: torch.zeros(H, P, S, dtype=torch.float64), ValueError),
    "int32": (lambda: torch.zeros(H, P, S, dtype=torch.int32), ValueError),
    "bool": (lambda: torch.zeros(H, P, S, dtype=torch.bool), ValueError),
    "complex": (lambda: torch.zeros(H, P, S, dtype=torch.complex64), ValueError),
    "float8": (lambda: torch.zeros(H, P, S).to(torch.float8_e4m3fn), ValueError),
    "no contiguous axis": (lambda: torch.zeros(H, 2 * P, 2 * S)[:, ::2, ::2], ValueError),
    "heads contiguous": (lambda: torch.zeros(S, P, H).permute(2, 1, 0), ValueError),
    "None": (lambda: None, TypeError),
    "list": (lambda: [[[0.0] * S] * P] * H, TypeError),
    "array": (lambda: np.zeros((H, P, S), np.float32), TypeError),
}


@pytest.mark.parametrize("what", SCORES)
def test_wrong_scores_are_refused(device, what):
    make, error = SCORES[what]
    with device:  # made there: moving a strided tensor would make it contiguous
        scores = make()
    with pytest.raises(error, match="max_score"):
        call(device, max_score=scores)


def test_sparse_scores_are_refused(device):
    with pytest.raises((ValueError, RuntimeError)):
        msa_topk_select(torch.zeros(H, P, S, device=device).to_sparse(), 16)


@pytest.mark.parametrize("topk", [0, -1, 65, 2**31, 2**40, *NOT_INTS], ids=repr)
def test_wrong_topk_is_refused(device, topk):
    with pytest.raises((ValueError, TypeError) if topk is None else ValueError, match="topk"):
        call(device, topk=topk, output=None)


@pytest.mark.parametrize("name", ["force_begin_blocks", "force_end_blocks"])
@pytest.mark.parametrize("count", [-1, -(2**31), 17, 2**31, *NOT_INTS], ids=repr)
def test_wrong_force_count_is_refused(device, name, count):
    with pytest.raises((ValueError, TypeError), match="force"):
        call(device, **{name: count})


@pytest.mark.parametrize(("begin", "end"), [(16, 1), (1, 16), (9, 8), (17, 0), (-1, 5), (5, -1)])
def test_wrong_pair_of_force_counts_is_refused(device, begin, end):
    with pytest.raises(ValueError, match="force"):
        call(device, force_begin_blocks=begin, force_end_blocks=end)


@pytest.mark.parametrize("extent", [0, -1, P + 1, 2 * P, 2**31, -(2**40)])
def test_int_extent_outside_the_blocks_is_refused(device, extent):
    with pytest.raises(ValueError, match="num_valid_pages"):
        call(device, num_valid_pages=extent)


@pytest.mark.parametrize(("begin", "end"), [(1, 2), (0, 3), (3, 0), (8, 8)])
def test_int_extent_below_the_forced_sum_is_refused(device, begin, end):
    forced = {"force_begin_blocks": begin, "force_end_blocks": end}
    for extent in range(1, begin + end):
        with pytest.raises(ValueError, match="num_valid_pages"):
            call(device, num_valid_pages=extent, **forced)
    if begin + end == 3:
        assert call("cpu", num_valid_pages=begin + end, **forced).ne(POISON).all()


@pytest.mark.parametrize("extent", [3.0, "3", [3] * S, (3,), np.full(S, 3, np.int32)], ids=repr)
def test_extent_of_another_type_is_refused(device, extent):
    with pytest.raises(TypeError, match="num_valid_pages"):
        call(device, num_valid_pages=extent)


@pytest.mark.parametrize("extent", [True, False])
def test_bool_is_not_an_extent(device, extent):
    with pytest.raises((TypeError, ValueError), match="num_valid_pages"):
        call(device, num_valid_pages=extent)


TOKEN_EXTENTS = {
    "int64": lambda: torch.ones(S, dtype=torch.int64),
    "int16": lambda: torch.ones(S, dtype=torch.int16),
    "float": lambda: torch.ones(S),
    "bool": lambda: torch.ones(S, dtype=torch.bool),
    "rank 0": lambda: torch.tensor(3, dtype=torch.int32),
    "rank 2": lambda: torch.ones(S, 1, dtype=torch.int32),
    "strided": lambda: torch.ones(2 * S, dtype=torch.int32)[::2],
    "expanded": lambda: torch.ones(1, dtype=torch.int32).expand(S),
}


@pytest.mark.parametrize("what", TOKEN_EXTENTS)
def test_wrong_token_extents_are_refused(device, what):
    with device:
        extents = TOKEN_EXTENTS[what]()
    with pytest.raises(ValueError, match="num_valid_pages"):
        call(device, num_valid_pages=extents)


@pytest.mark.parametrize("what", ["int64", "int16", "float", "bool", "rank 0", "rank 2"])
def test_token_extents_message_says_1d_int32(device, what):
    with pytest.raises(ValueError, match="1D int32"):
        call(device, num_valid_pages=TOKEN_EXTENTS[what]().to(device))


@pytest.mark.parametrize("count", [0, 1, S - 1, S + 1, 2 * S])
def test_token_extents_of_the_wrong_length_are_refused(device, count):
    with pytest.raises(ValueError, match="total_qo_len"):
        call(device, num_valid_pages=tokens([3] * count, device))


OUTPUTS = {
    "int64": lambda: torch.zeros(S, H, 16, dtype=torch.int64),
    "float": lambda: torch.zeros(S, H, 16),
    "uint8": lambda: torch.zeros(S, H, 16, dtype=torch.uint8),
    "heads first": lambda: torch.zeros(H, S, 16, dtype=torch.int32),
    "topk 15": lambda: torch.zeros(S, H, 15, dtype=torch.int32),
    "topk 17": lambda: torch.zeros(S, H, 17, dtype=torch.int32),
    "one token more": lambda: torch.zeros(S + 1, H, 16, dtype=torch.int32),
    "flat": lambda: torch.zeros(S * H * 16, dtype=torch.int32),
    "rank 2": lambda: torch.zeros(S * H, 16, dtype=torch.int32),
    "empty": lambda: torch.zeros(0, dtype=torch.int32),
    "expanded tokens": lambda: torch.zeros(1, H, 16, dtype=torch.int32).expand(S, H, 16),
    "expanded slots": lambda: torch.zeros(S, H, 1, dtype=torch.int32).expand(S, H, 16),
}


@pytest.mark.parametrize("what", OUTPUTS)
def test_wrong_output_is_refused(device, what):
    with torch.device(device):  # `Tensor.to` would make a dense copy of an expanded tensor
        output = OUTPUTS[what]()
    with pytest.raises(ValueError, match="output"):
        call(device, output=output)


@pytest.mark.parametrize("output", [[[0]], "output", 5, np.zeros((S, H, 16), np.int32)],
                         ids=["list", "str", "int", "array"])  # fmt: skip
def test_output_of_another_type_is_refused(device, output):
    with pytest.raises(TypeError, match="output"):
        call(device, output=output)


def test_tensors_of_mixed_devices_are_refused(device):
    other = "cpu" if device.type == "cuda" else "meta"
    with pytest.raises(ValueError, match="num_valid_pages"):
        call(device, num_valid_pages=torch.ones(S, dtype=torch.int32, device=other))
    with pytest.raises(ValueError, match="output"):
        call(device, output=torch.zeros(S, H, 16, dtype=torch.int32, device=other))
    if other == "cpu":
        with pytest.raises(ValueError, match=r"output|num_valid_pages"):
            call("cpu", output=torch.zeros(S, H, 16, dtype=torch.int32, device=device))


def test_checks_hold_for_empty_work_too(device):
    """An idle rank must not hide a wrong call."""
    empty = torch.empty(H, P, 0, device=device)
    with pytest.raises(ValueError, match="topk"):
        msa_topk_select(empty, 0)
    with pytest.raises(ValueError, match="total_qo_len"):
        msa_topk_select(empty, 16, tokens([3], device))
    with pytest.raises(ValueError, match="output"):
        msa_topk_select(empty, 16, output=torch.zeros(1, H, 16, dtype=torch.int32, device=device))
    with pytest.raises(ValueError, match="num_valid_pages"):
        msa_topk_select(torch.empty(H, 0, S, device=device), 16, 1)


def test_messages_say_what_came(device):
    for changes, words in [
        ({"topk": 65}, "65"),
        ({"num_valid_pages": 99}, "99"),
        ({"num_valid_pages": torch.ones(S, dtype=torch.int64, device=device)}, "int64"),
        ({"output": torch.zeros(S, H, 15, dtype=torch.int32, device=device)}, "15"),
        ({"force_begin_blocks": 12, "force_end_blocks": 13}, r"25|12.*13"),
    ]:
        with pytest.raises(ValueError, match=words):
            call(device, **changes)


def test_a_good_call_works_after_every_error(device):
    for changes in ({"topk": 0}, {"num_valid_pages": 0}, {"force_end_blocks": 17}):
        with pytest.raises(ValueError, match=r"topk|num_valid_pages|force"):
            call(device, **changes)
        assert call(device).ge(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_output_that_overlaps_an_input_is_refused(device, dtype):
    """From the same memory, from its middle, and with one word in common at either end."""
    words, size = S * H * 16, H * P * S * dtype.itemsize // 4
    arena = torch.zeros(2 * words + size, dtype=torch.int32, device=device)
    scores = arena[words : words + size].view(dtype).view(H, P, S)
    for start in (1, words, words + 7, words + size - 1):
        with pytest.raises(ValueError, match=r"output.*overlap|overlap.*output"):
            call(device, max_score=scores, output=arena[start : start + words].view(S, H, 16))
    call(device, max_score=scores, output=arena[:words].view(S, H, 16))
    call(device, max_score=scores, output=arena[words + size :].view(S, H, 16))


def test_output_that_overlaps_the_extents_is_refused(device):
    words = S * H * 16
    arena = torch.full((words + 2 * S,), 9, dtype=torch.int32, device=device)
    output = arena[S : S + words].view(S, H, 16)
    for start in (1, S, 2 * S, S + words - 1):
        with pytest.raises(ValueError, match=r"output.*overlap|overlap.*output"):
            call(device, num_valid_pages=arena[start : start + S], output=output)
    call(device, num_valid_pages=arena[:S], output=output)
    call(device, num_valid_pages=arena[S + words :], output=output)


@pytest.mark.gpu
def test_a_gpu_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    values = draw("normal", (H, P, S), device="cuda")
    output = torch.full((S, H, 9), POISON, dtype=torch.int32, device="cuda")
    with pytest.raises(RuntimeError, match=r"8\.0"):
        msa_topk_select(values, 9, None, output, 4, 5)  # no other test uses this kernel
    assert output.eq(POISON).all()
