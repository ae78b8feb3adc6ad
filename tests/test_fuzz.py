# SPDX-License-Identifier: Apache-2.0
"""The fuzzer passes a right op, catches planted faults, shrinks them and replays them."""

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fuzz
import pytest
import torch
from dispatch import kernels
from scores import DTYPE_NAMES, INF, SHARED_SPECS

from flashinfer_msa.msa_ops import msa_topk_select

ROOT = Path(__file__).parents[1]


def last_id_wins_ties(scores, topk, **rest):
    """A fault of order: ties to the higher id, where no block is forced."""
    forced = rest["force_begin_blocks"] + rest["force_end_blocks"]
    if forced or rest["num_valid_pages"] is not None:
        return msa_topk_select(scores, topk, **rest)
    ids = msa_topk_select(scores.flip(1).contiguous(), topk)  # all blocks, so flipped is whole
    ids = torch.where(ids < 0, scores.shape[1], scores.shape[1] - 1 - ids).sort().values
    rest["output"].copy_(torch.where(ids == scores.shape[1], -1, ids))
    return rest["output"]


def takes_minus_inf(scores, topk, **rest):
    lifted = torch.where(scores == -INF, torch.finfo(scores.dtype).min, scores)
    return msa_topk_select(lifted, topk, **rest)


def leaves_the_tail(scores, topk, **rest):
    before = rest["output"].clone()
    msa_topk_select(scores, topk, **rest)
    rest["output"].copy_(torch.where(rest["output"] < 0, before, rest["output"]))
    return rest["output"]


def writes_one_word_too_many(scores, topk, **rest):
    output = msa_topk_select(scores, topk, **rest)
    if output.numel():
        end = output.storage_offset() + output.numel()
        output.new_empty(0).set_(output.untyped_storage(), end, (1,)).fill_(-1)
    return output


def reads_past_the_extent(scores, topk, **rest):
    if isinstance(rest["num_valid_pages"], torch.Tensor):
        rest["num_valid_pages"] = rest["num_valid_pages"].clamp(max=2**31 - 2) + 1
    return msa_topk_select(scores, topk, **rest)


def flushes_subnormals(scores, topk, **rest):
    tiny = torch.finfo(scores.dtype).tiny
    return msa_topk_select(torch.where(scores.abs() < tiny, 0.0, scores), topk, **rest)


def drops_nan(scores, topk, **rest):
    return msa_topk_select(scores.nan_to_num(-INF, INF, -INF), topk, **rest)


def forgets_the_last_rows(scores, topk, **rest):
    """Wrong only where the number of rows is no multiple of the tile."""
    output = msa_topk_select(scores, topk, **rest)
    full = output.shape[0] // 32 * 32
    if full:
        output[full:] = -1
    return output


def clobbers_the_scores(scores, topk, **rest):
    output = msa_topk_select(scores, topk, **rest)
    scores[:1, :1, :1] = 0.0
    return output


FAULTS = [
    last_id_wins_ties, takes_minus_inf, leaves_the_tail, writes_one_word_too_many,
    reads_past_the_extent, flushes_subnormals, drops_nan, forgets_the_last_rows,
    clobbers_the_scores,
]  # fmt: skip


def test_a_right_op_passes(device, monkeypatch):
    cases = 1000
    if device.type == "cpu":
        cases = 150
        monkeypatch.setattr(fuzz, "MAX_SCORES", 1 << 12)
    said = []
    assert fuzz.fuzz(cases, 3, device.type, say=said.append) == []
    assert said[-1] == f"fuzz: {cases} cases, 0 failures, seed 3"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_shrunk_and_replayed(fault, monkeypatch):
    monkeypatch.setattr(fuzz, "MAX_SCORES", 1 << 12)
    said = []
    (small,) = fuzz.fuzz(400, 5, op=fault, say=said.append, stop_after=1)
    assert small.heads * small.blocks * small.tokens <= 2000, small
    assert "+" not in small.kinds
    line = re.search(r'--replay "(.*)"', "\n".join(said))[1]
    with pytest.raises(AssertionError):
        fuzz.replay(line, op=fault)
    fuzz.replay(line)
    assert re.fullmatch(r"fuzz: \d+ cases, 1 failures, seed 5", said[-1])


def test_an_exception_is_a_failure(monkeypatch):
    def raises(scores, topk, **rest):
        if scores.shape[1] > 3:
            raise RuntimeError("planted")
        return msa_topk_select(scores, topk, **rest)

    monkeypatch.setattr(fuzz, "MAX_SCORES", 1 << 12)
    (small,) = fuzz.fuzz(64, 1, op=raises, say=lambda line: None, stop_after=1)
    assert (small.heads, small.blocks, small.tokens) == (1, 4, 1)


def test_a_line_is_the_whole_case():
    rng = random.Random(1)
    for _ in range(200):
        case = fuzz.random_case(rng, "cpu")
        assert fuzz.Case.parse(str(case)) == case
    first, second = (fuzz.Case.parse(str(case)).trial() for _ in range(2))
    assert torch.equal(first.scores.before, second.scores.before)


def test_cases_reach_small_and_large_shapes():
    rng = random.Random(2)
    cases = [fuzz.random_case(rng, "cpu") for _ in range(20_000)]
    assert {c.heads for c in cases} >= set(range(1, 10))
    assert min(c.blocks for c in cases) == 0
    assert max(c.blocks for c in cases) > 131_072
    assert max(c.tokens for c in cases) >= 4096
    assert {c.blocks for c in cases} >= {2**j + d for j in range(2, 10) for d in (-1, 0, 1)}
    assert len({(c.topk, c.dtype, c.begin, c.end, c.extent in ("none", "int")) for c in cases}) < 16


def test_cases_reach_every_kernel_of_every_spec():
    rng = random.Random(3)
    met = Counter()
    for _ in range(20_000):  # as one run on a GPU
        case = fuzz.random_case(rng, "cuda")
        met[case.topk, case.dtype, case.begin, case.end, case.kernel] += 1
    for spec in SHARED_SPECS:
        names = spec.topk, DTYPE_NAMES[spec.dtype], spec.begin, spec.end
        for kernel in kernels(spec.topk):
            assert met[(*names, kernel)] >= 2, (names, kernel)


def test_the_command_line_ends_with_the_tally():
    command = [sys.executable, str(ROOT / "tests" / "fuzz.py"), "--device", "cpu"]
    done = subprocess.run([*command, "--cases", "5", "--seed", "9"], capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "fuzz: 5 cases, 0 failures, seed 9"
