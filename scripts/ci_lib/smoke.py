# SPDX-License-Identifier: Apache-2.0
"""smoke.py PREFIX: the package installed below PREFIX answers, and has its CUDA sources."""

import sys
from pathlib import Path

import torch

import flashinfer_msa
from flashinfer_msa.env import include_dir, template_dir
from flashinfer_msa.msa_ops import msa_topk_select

prefix = Path(sys.argv[1]).resolve()
for path in (Path(flashinfer_msa.__file__), include_dir(), template_dir()):
    assert path.resolve().is_relative_to(prefix), f"{path} is not of the installed wheel"

scores = torch.tensor([0.0, 3.0, -torch.inf, 2.0, 5.0, 1.0]).view(1, 6, 1)
chosen = msa_topk_select(scores, 4, torch.tensor([5], dtype=torch.int32), None, 1, 1)
assert chosen.tolist() == [[[0, 1, 3, 4]]], chosen
print(f"installed wheel {flashinfer_msa.__version__}: answers, sources in {include_dir().parent}")
