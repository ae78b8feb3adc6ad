# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: capture, then replay with scores and extents changed in place."""

import itertools
import re
import threading

import pytest
import torch
from graphs import StaticCall
from guards import POISON
from scores import BFLOAT, F32, LOCAL, PLAIN, SINK_LOCAL, Spec

from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference

pytestmark = pytest.mark.gpu

# Decode of one and of many tokens, a small prefill, long rows: every kernel is captured.
SHAPES = [(4, 128, 1), (4, 512, 64), (1, 24, 300), (2, 1024, 40), (4, 9000, 3), (1, 40_000, 1)]
SHAPES += [(4, 300, 130), (4, 520, 64), (4, 120, 1100), (4, 520, 1030)]  # one of each other kernel


@pytest.mark.parametrize("spec", [LOCAL, SINK_LOCAL, BFLOAT], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_replay_follows_scores_and_extents_changed_in_place(shape, spec):
    case = StaticCall(shape, spec)
    graph = case.capture()
    for _ in range(20):
        case.refill()
        graph.replay()
        case.check()


def test_a_thousand_replays_are_right():
    case = StaticCall((4, 512, 16))
    graph = case.capture()
    for _ in range(1000):
        case.refill()
        graph.replay()
        case.count_wrong()
    assert case.wrong.item() == 0


@pytest.mark.parametrize("shape", [(4, 256, 16), (2, 9000, 4)], ids=str)
def test_extents_that_shrink_and_grow_leave_nothing_stale(shape):
    case = StaticCall(shape)
    graph = case.capture()
    blocks = shape[1]
    for n in [*range(blocks, -2, -max(1, blocks // 40)), *range(0, blocks + 2, blocks // 20)]:
        case.refill("quantised")
        case.extents.fill_(n)
        graph.replay()
        case.count_wrong()
    assert case.wrong.item() == 0


def test_stale_padded_rows_are_clamped_and_harmless():
    """A graph for 16 tokens replayed with 5: the rest hold what an earlier step left."""
    case = StaticCall((4, 128, 16))
    case.extents.fill_(10**6)  # also during capture, as a dummy run does
    graph = case.capture()
    for stale in (10**6, 2**31 - 1, -(2**31), -1, 0):
        case.refill("any_bits")
        case.extents[5:] = stale
        graph.replay()
        case.check()


@pytest.mark.parametrize("extent", [None, 100], ids=["none", "int"])
def test_uniform_extents_can_be_captured(extent):
    scores = torch.randn(4, 128, 8, device="cuda")
    output = msa_topk_select(scores, PLAIN.topk, extent)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        msa_topk_select(scores, PLAIN.topk, extent, output)
    for _ in range(10):
        scores.normal_()
        output.fill_(POISON)
        graph.replay()
        assert torch.equal(output, reference(scores, PLAIN.topk, extent))


def test_output_allocated_inside_a_capture_belongs_to_the_graph():
    scores = torch.randn(2, 300, 5, device="cuda")
    msa_topk_select(scores, 16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = msa_topk_select(scores, 16)
    for _ in range(10):
        scores.normal_()
        graph.replay()
        assert torch.equal(output, reference(scores, 16))


def test_many_calls_in_one_graph():
    """One for each layer, on buffers of their own."""
    cases = [StaticCall(SHAPES[i % len(SHAPES)], seed=i) for i in range(24)]
    for case in cases:
        case.call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for case in cases:
            case.call()
    for _ in range(10):
        for case in cases:
            case.refill()
        graph.replay()
        for case in cases:
            case.check()


def test_graphs_and_eager_calls_interleave_on_several_streams():
    """Scratch shared between streams, or between a graph and an eager call, would show."""
    cases = [StaticCall(SHAPES[i % len(SHAPES)], seed=i) for i in range(8)]
    graphs = [case.capture() if i % 2 else None for i, case in enumerate(cases)]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for round_ in range(100):
        for i, (case, graph) in enumerate(zip(cases, graphs, strict=True)):
            with torch.cuda.stream(streams[i % 4]):
                case.refill()
                if graph is not None and round_ % 3:
                    graph.replay()
                else:
                    case.call()
                case.count_wrong()
    torch.cuda.synchronize()
    assert [case.wrong.item() for case in cases] == [0] * len(cases)


def test_one_graph_replayed_back_to_back_on_two_streams_in_turn():
    case = StaticCall((4, 2000, 30))
    graph = case.capture()
    streams = itertools.cycle([torch.cuda.Stream(), torch.cuda.Stream()])
    before = torch.cuda.current_stream()
    for _ in range(200):
        stream = next(streams)
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            case.refill()
            graph.replay()
            case.count_wrong()
        before = stream
    torch.cuda.synchronize()
    assert case.wrong.item() == 0


def test_captured_in_one_thread_and_replayed_in_another():
    case = StaticCall((4, 700, 20))
    graphs: list[torch.cuda.CUDAGraph] = []
    worker = threading.Thread(target=lambda: graphs.append(case.capture()))
    worker.start()
    worker.join()
    for _ in range(20):
        case.refill()
        graphs[0].replay()
        case.check()


def test_a_replay_waits_for_what_was_queued_before_it():
    """The producer of scores and extents is still running when the replay is queued."""
    case = StaticCall((4, 512, 64))
    graph = case.capture()
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        for _ in range(3):
            busy = (busy @ busy).clamp_(-1, 1)
        case.refill()
        graph.replay()
        case.count_wrong()
    torch.cuda.synchronize()
    assert case.wrong.item() == 0


@pytest.mark.parametrize("shape", [(4, 128, 0), (0, 128, 4), (4, 0, 4)], ids=str)
def test_empty_work_can_be_captured(shape):
    case = StaticCall(shape, PLAIN)
    graph = case.capture()
    case.output.fill_(POISON)
    graph.replay()
    assert case.output.eq(-1).all()


def test_wrong_arguments_do_not_spoil_a_capture():
    case = StaticCall((4, 128, 8))
    case.call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="topk"):
            msa_topk_select(case.scores, 0)
        case.call()
    case.refill()
    graph.replay()
    case.check()


def test_capture_of_a_cold_kernel_works_or_says_what_to_do():
    """A build may not sneak into a capture; afterwards the process is as good as before."""
    case = StaticCall((2, 64, 4), Spec(13, F32, 2, 1))
    torch.cuda.synchronize()
    graph, refused = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        try:
            case.call()
        except RuntimeError as error:
            refused = str(error)
    if refused is None:  # found in the cache: nothing to compile
        case.refill()
        graph.replay()
        case.check()
    else:
        assert re.search(r"(?i)captur|warm", refused), refused
    graph = case.capture()
    case.refill()
    graph.replay()
    case.check()
