# SPDX-License-Identifier: Apache-2.0
"""Any stream, any thread, any GPU, whatever the current device is."""

import threading

import pytest
import torch
from graphs import StaticCall
from scores import F32, LOCAL, PLAIN, Spec, draw, tokens

from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference

# A row a thread block, some rows, long rows, a quad of lanes a row, a lane a row.
SHAPES = [(4, 128, 8), (4, 400, 40), (4, 600, 40), (1, 12_000, 3), (4, 64, 1420), (4, 520, 1030)]
SHAPES += [(4, 4200, 130), (1, 8300, 530), (1, 8300, 70), (1, 4200, 40), (1, 4200, 150)]


@pytest.mark.gpu
def test_the_call_goes_to_the_current_stream():
    """A call on the default stream would read the scores before they are there."""
    case = StaticCall((4, 512, 32))
    stream = torch.cuda.Stream()
    busy = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(10):
            for _ in range(3):
                busy = (busy @ busy).clamp_(-1, 1)
            case.refill()
            case.call()
            case.count_wrong()
    stream.synchronize()
    assert case.wrong.item() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_streams_do_not_disturb_each_other(shape):
    cases = [StaticCall(shape, seed=i) for i in range(2)]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(1000 if shape[1] < 1000 else 200):
        for case, stream in zip(cases, streams, strict=True):
            with torch.cuda.stream(stream):
                case.scores.add_(0.5)
                case.call()
                case.count_wrong()
    torch.cuda.synchronize()
    assert [case.wrong.item() for case in cases] == [0, 0]


@pytest.mark.gpu
def test_calls_finish_beside_a_kernel_that_fills_the_gpu():
    """Nothing in the op may wait for blocks that cannot be resident together."""
    busy, other = torch.randn(8192, 8192, device="cuda"), torch.cuda.Stream()
    cases = [*map(StaticCall, SHAPES)]
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        for _ in range(10):
            busy = (busy @ busy).clamp_(-1, 1)
    for _ in range(50):
        for case in cases:
            case.call()
            case.count_wrong()
    torch.cuda.synchronize()
    assert [case.wrong.item() for case in cases] == [0] * len(cases)


@pytest.mark.gpu
def test_no_call_waits_for_the_device():
    """torch raises on every wait that it knows of while this mode is on."""
    case = StaticCall((4, 512, 32))

    def calls():
        case.call()
        msa_topk_select(case.scores, 16)
        msa_topk_select(case.scores, 16, 100)

    calls()  # builds and loads may take their time
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        calls()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_warm_call_returns_while_the_gpu_is_busy():
    case = StaticCall((4, 512, 32))
    case.call()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # about a second of clock ticks
    case.call()
    done.record()
    assert not done.query(), "the call waited for the device"
    torch.cuda.synchronize()
    case.check()


@pytest.mark.gpu
def test_only_the_output_is_allocated():
    case = StaticCall((4, 3000, 64))
    case.call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    case.call()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    output = msa_topk_select(case.scores, 16, case.extents, None, LOCAL.begin, LOCAL.end)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1
    assert torch.equal(output, case.expected())


def in_threads(*functions):
    """Run each in its own thread and raise what any of them raised."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def repeat(case, times):
    def run():
        torch.cuda.synchronize(case.device)  # the buffers were filled on another stream
        with torch.cuda.device(case.device), torch.cuda.stream(torch.cuda.Stream(case.device)):
            for _ in range(times):
                case.refill()
                case.call()
                case.count_wrong()
            torch.cuda.current_stream().synchronize()
        assert case.wrong.item() == 0

    return run


@pytest.mark.gpu
def test_threads_make_the_first_call_of_a_kernel_at_once():
    """None may launch what another has not readied yet. No other test uses these counts."""
    spec = Spec(10, F32, 3, 2)
    cases = [StaticCall(SHAPES[i % len(SHAPES)], spec, seed=i) for i in range(8)]
    in_threads(*(repeat(case, 3) for case in cases))


@pytest.mark.gpu
def test_eight_threads_call_at_once():
    cases = [StaticCall(SHAPES[i % len(SHAPES)], seed=i) for i in range(8)]
    torch.cuda.synchronize()
    in_threads(*(repeat(case, 50) for case in cases))


def test_threads_call_at_once_on_the_cpu():
    values = [draw("quantised", (2, 200, 9), seed=i) for i in range(4)]
    expected = [reference(v, 16) for v in values]

    def run(i):
        for _ in range(10):
            assert torch.equal(msa_topk_select(values[i], 16), expected[i])

    in_threads(*(lambda i=i: run(i) for i in range(4)))


@pytest.fixture
def first_gpu_is_current():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0, "the current device must not change"
    torch.cuda.set_device(0)


@pytest.mark.two_gpus
@pytest.mark.usefixtures("first_gpu_is_current")
class TestTwoGpus:
    def test_tensors_on_the_gpu_that_is_not_current(self):
        for spec in (PLAIN, LOCAL):
            for shape in SHAPES:
                case = StaticCall(shape, spec, device="cuda:1")
                case.call()
                assert torch.cuda.current_device() == 0
                assert case.output.device.index == 1
                case.check()

    def test_output_is_allocated_beside_the_scores(self):
        values = draw("normal", (2, 90, 5), device="cuda:1")
        output = msa_topk_select(values, 16)
        assert output.device == values.device
        assert torch.equal(output.cpu(), reference(values.cpu(), 16))

    def test_the_stream_is_that_of_the_tensors_gpu(self):
        case = StaticCall((4, 512, 32), device="cuda:1")
        stream = torch.cuda.Stream("cuda:1")
        busy = torch.randn(4096, 4096, device="cuda:1")
        torch.cuda.synchronize("cuda:1")
        with torch.cuda.stream(stream):
            for _ in range(10):
                busy = (busy @ busy).clamp_(-1, 1)
            case.refill()
            torch.cuda.set_device(0)  # the stream of GPU 1 stays current there
            case.call()
            case.count_wrong()
        stream.synchronize()
        assert case.wrong.item() == 0

    def test_two_threads_on_two_gpus(self):
        cases = [StaticCall(s, seed=i, device=f"cuda:{i % 2}") for i, s in enumerate(SHAPES)]
        in_threads(*(repeat(case, 100) for case in cases))

    def test_two_gpus_in_turn_from_one_thread(self):
        cases = [StaticCall((4, 300, 20), seed=i, device=f"cuda:{i}") for i in (0, 1)]
        for _ in range(50):
            for case in cases:
                case.refill()
                case.call()
                case.count_wrong()
        assert [case.wrong.item() for case in cases] == [0, 0]

    def test_a_graph_of_the_second_gpu(self):
        case = StaticCall((4, 300, 20), device="cuda:1")
        graph = case.capture()
        for _ in range(10):
            case.refill()
            graph.replay()
            case.check()

    def test_mixed_gpus_are_refused(self):
        values = draw("normal", (2, 90, 5), device="cuda:0")
        with pytest.raises(ValueError, match="num_valid_pages"):
            msa_topk_select(values, 16, tokens([9] * 5, "cuda:1"))
        output = torch.zeros(5, 2, 16, dtype=torch.int32, device="cuda:1")
        with pytest.raises(ValueError, match="output"):
            msa_topk_select(values, 16, output=output)
        assert output.eq(0).all()

    def test_errors_leave_the_current_device_alone(self):
        values = draw("normal", (2, 90, 5), device="cuda:1")
        for extent, topk in [(0, 16), (None, 0), (tokens([9], "cuda:1"), 16)]:
            with pytest.raises(ValueError, match=r"num_valid_pages|topk"):
                msa_topk_select(values, topk, extent)
            assert torch.cuda.current_device() == 0
