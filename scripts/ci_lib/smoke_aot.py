# SPDX-License-Identifier: Apache-2.0
"""smoke_aot.py PREFIX: with the wheels below PREFIX and no compiler, any legal call is served."""

import itertools
import sys
from pathlib import Path

import flashinfer_msa
from flashinfer_msa import jit
from flashinfer_msa.jit.aot import find_wheel
from flashinfer_msa.launch import load_library
from flashinfer_msa.spec import EXTENTS, SCORE_TYPES, TopKSelectSpec

prefix = Path(sys.argv[1]).resolve()
assert Path(flashinfer_msa.__file__).resolve().is_relative_to(prefix), flashinfer_msa.__file__
wheel = find_wheel()
assert wheel is not None
assert not wheel.mismatch, wheel.mismatch
specs = [TopKSelectSpec.parse(name) for name in wheel.manifest["artifacts"]]
gpus = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
for spec, gpu in itertools.product(specs, gpus):
    found = jit.find(spec, gpu)
    assert found.source == "aot", (spec, gpu, found)
    assert found.path.resolve().is_relative_to(prefix), found.path
    assert jit.load(spec, gpu).flashinfer_msa_abi_version() == spec.abi

calls = 0
topks = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64]
for topk, dtype, extent in itertools.product(topks, SCORE_TYPES, EXTENTS):
    for begin, end in ((0, 0), (0, topk), (1, topk - 1), (topk, 0)):
        call = TopKSelectSpec(topk, dtype, begin, end, extent)
        if call.generic() in specs:
            assert load_library(call, (9, 0)).flashinfer_msa_abi_version() == call.abi
            calls += 1
assert calls
print(f"installed kernels: {len(specs)} served on {len(gpus)} GPUs, and {calls} kinds of call")
