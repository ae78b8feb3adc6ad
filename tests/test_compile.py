# SPDX-License-Identifier: Apache-2.0
"""``torch.compile``, fake and meta tensors, autograd: the op is one opaque call."""

import pytest
import torch
from guards import POISON, check
from scores import LOCAL, draw, tokens
from torch._subclasses.fake_tensor import FakeTensorMode

from flashinfer_msa.msa_ops import msa_topk_select

H, P, S = 2, 60, 7
EXTENTS = [60, 0, 3, -1, 100, 17, 16]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def test_fullgraph_allocates_the_output(device):
    run = compiled(lambda scores: msa_topk_select(scores * 2, 16) + 1)
    values = draw("normal", (H, P, S), device=device)
    assert torch.equal(run(values) - 1, check(values * 2, 16))


def test_fullgraph_takes_extents_for_each_token(device):
    run = compiled(lambda scores, extents: msa_topk_select(scores, 16, extents, None, 0, 1))
    values, extents = draw("normal", (H, P, S), device=device), tokens(EXTENTS, device)
    assert torch.equal(run(values, extents), check(values, 16, extents, 0, 1))


def test_fullgraph_takes_an_int_extent(device):
    run = compiled(lambda scores, n: msa_topk_select(scores, 16, n))
    values = draw("normal", (H, P, S), device=device)
    for n in (60, 41, 17):
        assert torch.equal(run(values, n), check(values, 16, n))


def test_fullgraph_writes_output_in_place(device):
    def step(scores, extents, output):
        msa_topk_select(scores, LOCAL.topk, extents, output, LOCAL.begin, LOCAL.end)
        return output.sum()

    values, extents = draw("normal", (H, P, S), device=device), tokens(EXTENTS, device)
    output = torch.full((S, H, 16), POISON, dtype=torch.int32, device=device)
    total = compiled(step)(values, extents, output)
    assert torch.equal(output, check(values, 16, extents, 0, 1))
    assert total == output.sum()


def test_fullgraph_sees_the_result_of_a_call_with_output(device):
    def step(scores, output):
        return msa_topk_select(scores, 16, output=output) * 2

    values = draw("normal", (H, P, S), device=device)
    output = torch.full((S, H, 16), POISON, dtype=torch.int32, device=device)
    doubled = compiled(step)(values, output)
    expected = check(values, 16)
    assert torch.equal(output, expected)
    assert torch.equal(doubled, expected * 2)


def test_fullgraph_with_dynamic_shapes(device):
    run = compiled(lambda scores, extents: msa_topk_select(scores, 16, extents), dynamic=True)
    for shape in [(2, 60, 7), (3, 61, 9), (4, 300, 33)]:
        values = draw("normal", shape, device=device)
        extents = torch.arange(shape[2], device=device).int() * 9
        assert torch.equal(run(values, extents), check(values, 16, extents))


def test_fullgraph_reads_either_order_of_memory(device):
    run = compiled(lambda scores: msa_topk_select(scores.permute(0, 2, 1), 16))
    values = draw("normal", (H, S, P), device=device)
    assert torch.equal(run(values), check(values.permute(0, 2, 1).contiguous(), 16))


def test_fullgraph_raises_on_wrong_arguments():
    values = draw("normal", (H, P, S))
    with pytest.raises(Exception, match="topk"):
        compiled(lambda scores: msa_topk_select(scores, 65))(values)


@pytest.fixture
def inductor():
    """The default compiler needs triton, a host compiler and Python's headers."""
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(3, device="cuda"))
    except Exception as error:
        pytest.skip(f"torch.compile does not work here: {type(error).__name__}")


@pytest.mark.gpu
@pytest.mark.usefixtures("inductor")
def test_the_default_compiler_gives_the_same_answer():
    run = torch.compile(lambda s, n: msa_topk_select(s, 16, n, None, 0, 1), fullgraph=True)
    values, extents = draw("normal", (H, P, S), device="cuda"), tokens(EXTENTS, "cuda")
    assert torch.equal(run(values, extents), check(values, 16, extents, 0, 1))


@pytest.mark.gpu
@pytest.mark.usefixtures("inductor")
def test_the_compilers_own_graphs_replay_it():
    """`reduce-overhead` captures what it compiled; inputs change in place."""

    def step(scores, extents):
        return msa_topk_select(scores, 16, extents, None, 0, 1).clone()

    run = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    values, extents = draw("normal", (H, P, S), device="cuda"), tokens(EXTENTS, "cuda")
    for _ in range(6):
        values.normal_()
        extents.add_(3)
        assert torch.equal(run(values, extents), check(values, 16, extents, 0, 1))


def test_meta_tensors_give_shape_and_dtype():
    values = torch.empty(H, P, S, device="meta")
    for extent in (None, 30, torch.empty(S, dtype=torch.int32, device="meta")):
        output = msa_topk_select(values, 16, extent)
        assert (output.device.type, output.shape, output.dtype) == ("meta", (S, H, 16), torch.int32)
    given = torch.empty(S, H, 16, dtype=torch.int32, device="meta")
    assert msa_topk_select(values, 16, output=given).shape == (S, H, 16)


def test_meta_tensors_are_checked_too():
    values = torch.empty(H, P, S, device="meta")
    with pytest.raises(ValueError, match="topk"):
        msa_topk_select(values, 0)
    with pytest.raises(ValueError, match="total_qo_len"):
        msa_topk_select(values, 16, torch.empty(S + 1, dtype=torch.int32, device="meta"))
    with pytest.raises(ValueError, match="output"):
        msa_topk_select(values, 16, output=torch.empty(S, H, 15, dtype=torch.int32, device="meta"))


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_fake_tensors_need_no_memory_and_no_gpu(where):
    with FakeTensorMode():
        values = torch.empty(H, P, S, device=where)
        extents = torch.empty(S, dtype=torch.int32, device=where)
        for extent in (None, extents):
            output = msa_topk_select(values, 16, extent, None, 0, 1)
            assert (output.device.type, tuple(output.shape)) == (where, (S, H, 16))
            assert output.dtype == torch.int32
        given = torch.empty(S, H, 16, dtype=torch.int32, device=where)
        assert msa_topk_select(values, 16, extents, given).shape == (S, H, 16)


def test_fake_tensors_larger_than_any_machine():
    with FakeTensorMode():
        values = torch.empty(64, 131_072, 2**20)
        assert msa_topk_select(values, 64).shape == (2**20, 64, 64)


def test_scores_that_require_grad_are_served(device):
    """Selection has no gradient; training code calls it on what the scorer returns."""
    values = draw("normal", (H, P, S), device=device)
    expected = check(values, 16)
    for scores in (values.clone().requires_grad_(), values.clone().requires_grad_() * 1):
        output = msa_topk_select(scores, 16)
        assert not output.requires_grad
        assert torch.equal(output, expected)
        given = torch.empty_like(output)
        assert torch.equal(msa_topk_select(scores, 16, output=given), expected)
    with torch.inference_mode():
        assert torch.equal(msa_topk_select(values, 16), expected)


def test_inference_tensors_are_served(device):
    with torch.inference_mode():
        values = draw("normal", (H, P, S), device=device)
        inside = msa_topk_select(values, 16)
    assert torch.equal(msa_topk_select(values, 16), inside)


@pytest.mark.parametrize("token", [False, True], ids=["uniform", "token"])
def test_custom_ops_pass_torchs_own_checks(device, token):
    """Schema, fake kernel, mutation and dispatch keys, on real inputs."""
    values = draw("normal", (H, P, S), device=device)
    extents = tokens(EXTENTS, device) if token else None
    output = torch.full((S, H, 16), POISON, dtype=torch.int32, device=device)
    ops = torch.ops.flashinfer_msa
    torch.library.opcheck(ops.topk_select.default, (values, 16, extents, None, 0, 1))
    torch.library.opcheck(ops.topk_select_out.default, (values, 16, extents, None, output, 0, 1))


class Tagged(torch.Tensor):
    """As libraries have them that attach a name or a layout to a tensor."""


def test_tensor_subclasses_are_served(device):
    values = draw("normal", (H, P, S), device=device)
    expected = check(values, 16, None, 0, 1)
    for scores in (values.as_subclass(Tagged), torch.nn.Parameter(values)):
        output = msa_topk_select(scores, 16, None, None, 0, 1)
        assert torch.equal(output.as_subclass(torch.Tensor), expected)
        assert not output.requires_grad
