# SPDX-License-Identifier: Apache-2.0
"""Other selectors: their recorded times on an H200, and ``torch.topk`` live."""

from __future__ import annotations

import json
from pathlib import Path

import torch

_RECORD = Path(__file__).resolve().parents[1] / "peers_h200.json"
_KEY = 5  # leading columns that name the shape
Key = tuple[str, int, int, int, str]


def load() -> dict[Key, dict[str, float]]:
    """Return the recorded microseconds: shape -> column -> time, without those not measured."""
    record = json.loads(_RECORD.read_text())
    names = record["columns"][_KEY:]
    return {
        tuple(row[:_KEY]): {n: t for n, t in zip(names, row[_KEY:], strict=True) if t is not None}
        for row in record["rows"]
    }


def recorded_gpu() -> str:
    """Return the name of the GPU that the record is of."""
    return str(json.loads(_RECORD.read_text())["gpu"])


def torch_topk(scores: torch.Tensor, topk: int) -> torch.Tensor:
    """Select as torch does, without forced blocks or extents: ascending ids, ties anyhow."""
    return scores.transpose(1, 2).topk(topk, dim=-1).indices.sort(-1).values
