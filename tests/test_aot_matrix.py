# SPDX-License-Identifier: Apache-2.0
"""What is prebuilt serves every legal call on every promised GPU."""

import pytest

from aot.matrix import ARCHS, matrix, served_by, wheel_target
from flashinfer_msa.spec import EXTENTS, GENERIC_TOPK, MAX_TOPK, SCORE_TYPES, TopKSelectSpec


def legal_specs():
    """Yield every call that the contract allows, by what a kernel is specialised on."""
    for topk in range(1, MAX_TOPK + 1):
        for begin in range(topk + 1):
            for end in range(topk + 1 - begin):
                for dtype in SCORE_TYPES:
                    for extent in EXTENTS:
                        yield TopKSelectSpec(topk, dtype, begin, end, extent)


def test_every_legal_call_is_served():
    prebuilt = frozenset(matrix())
    count = 0
    for spec in legal_specs():
        server = served_by(spec, prebuilt)
        assert server is not None, spec.name
        assert (server.dtype, server.extent) == (spec.dtype, spec.extent)
        assert server == spec or (server.force_begin is None and server.topk >= spec.topk)
        count += 1
    assert count == 6 * sum((k + 1) * (k + 2) // 2 for k in range(1, MAX_TOPK + 1))


def test_one_missing_kernel_is_noticed():
    for missing in matrix():
        rest = [spec for spec in matrix() if spec != missing]
        if missing.force_begin is None:
            call = TopKSelectSpec(missing.topk, missing.dtype, 3, 3, missing.extent)
            assert served_by(call, rest) is None
        else:
            assert served_by(missing, rest) == missing.generic()


def test_matrix_is_the_common_calls_and_the_generic_builds():
    specs = matrix()
    assert len(set(specs)) == len(specs) == 18 + len(GENERIC_TOPK) * 6
    exact = {(s.topk, s.force_begin, s.force_end) for s in specs if s.force_begin is not None}
    assert exact == {(16, 0, 0), (16, 0, 1), (16, 1, 2)}


def test_default_target_is_both_gpus_and_the_newest_portable_code():
    assert ARCHS == ("8.0", "9.0")
    assert wheel_target().codes == ("sm80", "sm90", "ptx90")


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 1)])
def test_38_default_target_serves_every_gpu_from_8_0_on(capability):
    assert wheel_target().serves(capability)
    sass_alone = wheel_target(ptx="none")
    assert sass_alone.serves(capability) == (capability < (10, 0))


@pytest.mark.parametrize(
    ("archs", "ptx", "codes"),
    [
        (["9.0"], "newest", ("sm90", "ptx90")),
        (["8.0"], "none", ("sm80",)),
        (["9.0", "8.0"], "8.0", ("sm80", "sm90", "ptx80")),
        (["9.0a"], "newest", ("sm90a",)),
        (["8.0;9.0a"], "newest", ("sm80", "sm90a", "ptx80")),
        (["8.0+PTX", "sm_90"], "none", ("sm80", "sm90", "ptx80")),
    ],
)
def test_34_archs_are_spelled_as_everywhere(archs, ptx, codes):
    assert wheel_target(archs, ptx).codes == codes


@pytest.mark.parametrize(
    ("archs", "ptx"), [([], "none"), (["A100"], "none"), (["8.0"], "newer"), (["8.0"], "8.0 9.0")]
)
def test_34_what_is_no_arch_is_refused(archs, ptx):
    with pytest.raises(ValueError, match=r"arch|newer"):
        wheel_target(archs, ptx)
