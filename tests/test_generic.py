# SPDX-License-Identifier: Apache-2.0
"""One generic build serves every force count where the exact build cannot be had."""

import pytest
from fuzz import fuzz
from generic import only_generic_builds
from guards import check
from scores import F32, LOCAL, MIXTURE, PLAIN, SINK, SINK_LOCAL, Spec, draw, draw_extent

from flashinfer_msa import jit
from flashinfer_msa.msa_ops import msa_topk_select

pytestmark = pytest.mark.gpu
COUNTS = [PLAIN, LOCAL, SINK, SINK_LOCAL, Spec(16, F32, 2, 3), Spec(16, F32, 9, 7),
          Spec(16, F32, 16, 0), Spec(16, F32, 0, 16)]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def generic_builds():
    with only_generic_builds() as loaded:
        yield loaded
    assert loaded
    assert all("_bx_ex_" in name for name in loaded)


@pytest.mark.parametrize("spec", COUNTS, ids=str)
@pytest.mark.parametrize("form", ["none", "int", "random", "short", "wild"])
def test_the_generic_build_serves_any_force_counts(spec, form):
    topk, dtype, begin, end = spec
    for blocks, count in [(24, 38), (160, 19), (2500, 19), (9000, 3)]:
        values = draw(MIXTURE, (2, blocks, count), dtype, seed=blocks, device="cuda")
        extent = draw_extent(form, blocks, count, begin + end, seed=1, device="cuda")
        for layout in ("s_contiguous", "p_contiguous"):
            check(values, topk, extent, begin, end, layout=layout)


def test_the_generic_builds_pass_the_fuzzer():
    assert fuzz(1000, 21, "cuda", say=lambda line: None) == []


def test_where_no_build_can_be_had_the_error_is_clear(monkeypatch):
    def missing(spec, capability):
        raise jit.MissingKernelError(f"no kernel for {spec.name}")

    monkeypatch.setattr(jit, "load", missing)
    values = draw("normal", (1, 30, 2), device="cuda")
    with pytest.raises(RuntimeError, match="topk_select_k11_f32_b1_e0_uniform"):
        msa_topk_select(values, 11, None, None, 1, 0)
