# SPDX-License-Identifier: Apache-2.0
"""A launch may start while the kernel before it runs; what it reads and writes waits all the same.

The kernels before and after end late (producers.cu), and some let the next kernel start early. A
selector that did not wait would read what they have not written yet, or write what they have not
read yet.
"""

import ctypes
import json
import os
import subprocess
import sys

import pytest
import torch
from fake_cuda import python_path
from graphs import StaticCall
from guards import POISON
from producers import ProducedCall, load_producers, pass_on, slow_copy

from flashinfer_msa import jit, launch
from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference
from flashinfer_msa.spec import TopKSelectSpec

pytestmark = pytest.mark.gpu

# A row a thread block, some rows, thread blocks that share a row, a quad of lanes a row, a lane a
# row, long rows.
SHAPES = [(4, 128, 1), (4, 500, 20), (4, 520, 64), (1, 9000, 4), (4, 120, 1500), (4, 520, 1030)]
SHAPES += [(4, 4200, 130), (1, 8300, 530), (1, 8300, 70), (1, 4200, 40), (1, 4200, 150)]
EARLY = pytest.mark.parametrize("early", [False, True], ids=["plain", "early"])
BETWEEN = pytest.mark.parametrize("between", [0, 1, 3], ids="{} between".format)
PRODUCERS = pytest.mark.usefixtures("producers")
WAYS = pytest.mark.parametrize("way", ["eager", "graph"])


@pytest.fixture(scope="module")
def producers():
    """Build them before the tests, or skip where nothing may be compiled (the wheel alone)."""
    try:
        load_producers()
    except jit.MissingKernelError as missing:
        pytest.skip(f"the kernels of the test cannot be had: {missing}")


def runner(way: str, function):
    """Return what runs `function`: itself, or the replay of a graph of it."""
    function()  # a build may not happen inside a capture
    torch.cuda.synchronize()
    if way == "eager":
        return function
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def assert_always_right(case: ProducedCall, way: str, times: int) -> None:
    """Run a call so many times, each with other scores and extents."""
    run = runner(way, case.call)
    for _ in range(times):
        case.refill()
        run()
        case.count_wrong()
    assert case.wrong.item() == 0


@PRODUCERS
@WAYS
@BETWEEN
@EARLY
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_and_extents_written_just_before_are_the_ones_used(shape, early, between, way):
    assert_always_right(ProducedCall(shape, early, between), way, 50)


class IndirectCall(ProducedCall):
    """The same, but what comes right before the call is no kernel of its stream."""

    def __init__(self, shape, early: bool, kind: str) -> None:
        super().__init__(shape, early, between=0)
        self.kind = kind
        self.staged = torch.zeros_like(self.drawn)
        self.side = torch.cuda.Stream()

    def produce(self) -> None:
        here = torch.cuda.current_stream()
        if self.kind == "side stream":
            self.side.wait_stream(here)
            with torch.cuda.stream(self.side):
                slow_copy(self.memory, self.drawn, self.early)
            here.wait_stream(self.side)
            return
        slow_copy(self.staged, self.drawn, self.early)
        self.memory.copy_(self.staged)
        if self.kind == "memset":
            self.output.zero_()


@PRODUCERS
@WAYS
@EARLY
@pytest.mark.parametrize("kind", ["memcpy", "memset", "side stream"])
def test_what_comes_before_need_not_be_a_kernel_of_the_stream(kind, early, way):
    """A graph has no programmatic edge there, and must have an ordinary one."""
    assert_always_right(IndirectCall((4, 520, 64), early, kind), way, 20)


@PRODUCERS
@WAYS
@BETWEEN
@EARLY
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_is_not_written_before_an_earlier_kernel_has_read_it(shape, early, between, way):
    case = StaticCall(shape)
    side = torch.zeros_like(case.output)

    def read_then_call():
        slow_copy(side, case.output, early)
        for _ in range(between):
            pass_on()
        case.call()

    run = runner(way, read_then_call)
    for _ in range(20):
        case.refill()
        side.zero_()
        run()
        case.count_wrong()
        case.wrong += (side != POISON).any()
    assert case.wrong.item() == 0


@PRODUCERS
@WAYS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_kernel_after_the_call_sees_its_output(shape, way):
    case = StaticCall(shape)
    copied, late = torch.zeros_like(case.output), torch.zeros_like(case.output)

    def call_then_read():
        case.call()
        copied.copy_(case.output)
        case.call()
        slow_copy(late, case.output, early=False)

    run = runner(way, call_then_read)
    for _ in range(50):
        case.refill()
        run()
        expected = case.expected()
        case.wrong += (copied != expected).any() | (late != expected).any()
    assert case.wrong.item() == 0


@WAYS
def test_a_call_sees_the_output_of_the_call_before(way):
    """Both are dependent launches: the first's ids are the second's extents."""
    blocks, tokens = 300, 64
    first = torch.zeros(1, blocks, tokens, device="cuda")
    scores = torch.zeros(4, blocks, tokens, device="cuda")
    extents = torch.zeros(tokens, 1, 1, dtype=torch.int32, device="cuda")
    output = torch.zeros(tokens, 4, 16, dtype=torch.int32, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def call_twice():
        msa_topk_select(first, 1, None, extents)
        msa_topk_select(scores, 16, extents.view(tokens), output)

    run = runner(way, call_twice)
    for _ in range(50):
        first.normal_()
        scores.normal_()
        extents.fill_(blocks)
        run()
        right = reference(first, 1).view(tokens)
        wrong += (output != reference(scores, 16, right)).any()
    assert wrong.item() == 0


SCRIPT = """
import json, torch
from flashinfer_msa import launch
from flashinfer_msa.msa_ops import msa_topk_select
gen = torch.Generator("cuda").manual_seed(5)
ids = [
    msa_topk_select(torch.randn(shape, device="cuda", generator=gen).round(decimals=1), 16)
    for shape in (
        (4, 700, 40), (4, 128, 1), (4, 120, 1100), (4, 520, 1030),
        (1, 9000, 2), (2, 20_000, 5), (1, 40_000, 3), (1, 4200, 40), (1, 4200, 130), (1, 4200, 300),
        (1, 9000, 70), (1, 9000, 200),
    )
]
(ready,) = launch._ready.values()
weights = [1 + torch.arange(i.numel(), device="cuda").view(i.shape) % 1009 for i in ids]
sums = [int((i * w).sum()) for i, w in zip(ids, weights)]
print(json.dumps({"features": ready.features, "sums": sums}))
"""


def run_script(**environment: str):
    """Return what a process prints: the features it uses, and sums over all its answers."""
    settings = {"FLASHINFER_MSA_ARCH_LIST": "", "FLASHINFER_MSA_PDL": "", **environment}
    environ = {**os.environ, "PYTHONPATH": python_path(), **settings}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def has_dependent_launch() -> bool:
    driver = ctypes.c_int()
    assert ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver)) == 0
    return torch.cuda.get_device_capability() >= (9, 0) and driver.value >= 12030


def test_the_variable_turns_it_off_and_changes_no_answer():
    usual, off = run_script(), run_script(FLASHINFER_MSA_PDL="0")
    assert usual["features"] & launch.DEPENDENT_LAUNCH == has_dependent_launch()
    assert off["features"] == usual["features"] & ~launch.DEPENDENT_LAUNCH
    assert off["sums"] == usual["sums"]


def test_code_for_8_0_has_no_dependent_launch():
    """It has no instruction that would wait, nor clusters of thread blocks that share a row."""
    spec = TopKSelectSpec(16, "f32", 0, 0, "uniform")
    if jit.find(spec, torch.cuda.get_device_capability()).source == "aot":
        pytest.skip("an installed wheel serves it, whatever the list of architectures says")
    portable = run_script(FLASHINFER_MSA_ARCH_LIST="8.0+PTX")
    assert portable["features"] == 0
    assert portable["sums"] == run_script()["sums"]
