# SPDX-License-Identifier: Apache-2.0
"""A warm call costs the host little: one look-up and one foreign call. Needs no GPU."""

import gc
import struct
import threading
import weakref

import pytest
import torch
from fake_gpu import GPU, FakeGpu, H, K, P, S, extents, outputs, scores

from flashinfer_msa import launch, plans
from flashinfer_msa.msa_ops import msa_topk_select

EXTENTS = {"none": lambda: None, "int": lambda: 9, "tokens": extents}
EACH_FORM = pytest.mark.parametrize("form", EXTENTS)
GIVEN = pytest.mark.parametrize("given", [False, True], ids=["allocated", "output="])


@pytest.fixture
def gpu(monkeypatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


@EACH_FORM
@GIVEN
def test_a_warm_call_takes_no_check_and_one_foreign_call(gpu, form, given):
    def call():
        output = outputs() if given else None
        arguments = scores(), K, EXTENTS[form](), output, 1, 2
        return arguments, msa_topk_select(*arguments)

    call()
    assert gpu.checked
    gpu.checked.clear()
    for count in (2, 3):
        (values, _, extent, output, _, _), answer = call()
        assert (gpu.checked, len(gpu.library.calls)) == ([], count)
        assert answer is output if given else answer.shape == (S, H, K)
        assert (answer.dtype, answer.device) == (torch.int32, values.device)
        first, *_, last = gpu.calls()
        addresses = {
            "scores": values.data_ptr(),
            "extents": extent.data_ptr() if form == "tokens" else 0,
            "output": answer.data_ptr(),
        }
        assert last == first | addresses


def test_the_custom_ops_take_the_short_way_too(gpu):
    arguments = scores(), K, extents(), None
    torch.ops.flashinfer_msa.topk_select(*arguments, 0, 1)
    gpu.checked.clear()
    torch.ops.flashinfer_msa.topk_select(*arguments, 0, 1)
    msa_topk_select(arguments[0], K, arguments[2], None, 0, 1)
    assert (gpu.checked, len(gpu.library.calls)) == ([], 3)


def test_what_changes_from_call_to_call_reaches_the_kernel(gpu):
    base, output = torch.zeros(3 * H, 2 * P, 2 * S), outputs()
    views = [
        base[:H, :P, :S],
        base[:H, : P - 1, :S],
        base[1 : H + 1, 2 : P + 2, 3 : S + 3],
        base[::2][:H, :P, :S],
        torch.zeros(H, S, P).permute(0, 2, 1),
        torch.zeros(H, P, S),
    ]
    long = torch.ones(4 * S, dtype=torch.int32)
    for _ in range(2):
        for start, view in enumerate(views):
            for extent in (long[start : start + S], start + 1, None):
                gpu.stream += 8
                msa_topk_select(view, K, extent, output)
                got = gpu.calls()[-1]
                assert (got["heads"], got["blocks"], got["tokens"]) == view.shape
                strides = got["head_stride"], got["block_stride"], got["token_stride"]
                assert (got["scores"], strides) == (view.data_ptr(), view.stride())
                token = isinstance(extent, torch.Tensor)
                assert got["extents"] == (extent.data_ptr() if token else 0)
                assert got["extent"] == (extent if type(extent) is int else view.shape[1])
                assert got["stream"] == gpu.stream


def test_dtypes_have_plans_of_their_own(gpu):
    for dtype in (torch.float32, torch.float16, torch.bfloat16) * 2:
        msa_topk_select(scores(dtype), K)
    assert len(plans._plans) == len(launch._ready) == 3


def test_a_gpu_that_is_not_current_becomes_so_for_the_launch(gpu):
    found = []
    gpu.library.topk_select = lambda call: found.append(gpu.current) or 0
    for current in (GPU, 3, GPU, 3):
        gpu.current = current
        msa_topk_select(scores(), K)
        assert gpu.current == current
    assert found == [GPU] * 4


def test_each_gpu_has_plans_of_its_own(gpu, monkeypatch):
    found = []
    gpu.library.topk_select = lambda call: found.append(gpu.current) or 0
    msa_topk_select(scores(), K, None, outputs())
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 1))
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 1)
    for current in (GPU, 1, 1):
        gpu.current = current
        msa_topk_select(scores(), K, None, outputs())
    assert found == [GPU, 1, 1, 1]
    assert len(plans._plans) == len(launch._ready) == 2


def test_a_failed_launch_is_reported_on_the_short_way_too(gpu):
    errors = []
    gpu.library.topk_select = lambda call: errors[-1] if errors else 0
    gpu.library.topk_select_error = lambda error: b"no such luck"
    msa_topk_select(scores(), K)
    errors.append(700)
    gpu.checked.clear()
    with pytest.raises(RuntimeError, match=r"failed to launch .*\(2, 24, 5\).*luck.*700"):
        msa_topk_select(scores(), K)
    assert gpu.checked == []


@pytest.mark.parametrize("shape", [(0, P, S), (H, 0, S), (H, P, 0)], ids=str)
def test_empty_work_has_no_plan(gpu, shape):
    heads, _, tokens = shape
    for _ in range(2):
        assert msa_topk_select(torch.zeros(shape), K).shape == (tokens, heads, K)
    assert not plans._plans
    assert not gpu.library.calls


@pytest.mark.parametrize("kind", [torch.nn.Parameter, lambda t: t.as_subclass(Tagged)])
def test_subclasses_are_always_checked(gpu, kind):
    msa_topk_select(scores(), K)
    gpu.checked.clear()
    for _ in range(2):
        msa_topk_select(kind(scores()), K)
    assert gpu.checked.count("check_call") == 2


class Tagged(torch.Tensor):
    """A library's own kind of tensor."""


def test_tensors_without_memory_are_not_launched(gpu):
    msa_topk_select(scores(), K)
    answer = msa_topk_select(scores().to("meta"), K)
    assert (answer.device.type, len(gpu.library.calls)) == ("meta", 1)


def test_tensors_of_the_cpu_have_no_plan():
    for _ in range(2):
        msa_topk_select(scores(), K, 9)
    assert not [form for form in plans._plans if form[0].type == "cpu"]


def test_plans_are_bounded(gpu, monkeypatch):
    monkeypatch.setattr(plans, "MAX_PLANS", 50)
    for tokens in [*range(1, 200), 7, 7]:
        msa_topk_select(torch.zeros(1, 2, tokens), 1)
        assert len(plans._plans) <= 50
        assert gpu.calls()[-1]["tokens"] == tokens


def test_plans_keep_no_tensor_alive(gpu):
    tensors = scores(), extents(), outputs()
    seen = [weakref.ref(t) for t in tensors]
    msa_topk_select(tensors[0], K, tensors[1], tensors[2])
    msa_topk_select(tensors[0], K, tensors[1], tensors[2])
    del tensors
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3


def test_a_capture_needs_no_more_than_a_call_of_its_kind_before(gpu, monkeypatch):
    """A new form of a kernel that is ready may be captured; a kernel that is not may not."""
    msa_topk_select(scores(), K)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    msa_topk_select(scores(), K)
    msa_topk_select(torch.zeros(H, P + 1, S), K)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="before the capture"):
            msa_topk_select(scores(), K - 1)


def test_two_threads_take_their_own_ways(gpu, monkeypatch):
    """Each sees its own call arrive whole, while plans are forgotten all the time."""
    monkeypatch.setattr(plans, "MAX_PLANS", 3)
    own, wrong = threading.local(), []
    gpu.library.topk_select = lambda call: setattr(own, "call", call) or 0

    def run(heads: int) -> None:
        try:
            for tokens in list(range(1, 8)) * 60:
                values = torch.zeros(heads, P, tokens)
                output = torch.zeros(tokens, heads, K, dtype=torch.int32)
                for _ in range(2):
                    msa_topk_select(values, K, None, output)
                    got = struct.unpack("@4P3q8i", own.call)
                    want = (values.data_ptr(), 0, output.data_ptr())
                    if got[:3] != want or got[7:10] != (heads, P, tokens):
                        wrong.append(got)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(heads,)) for heads in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
