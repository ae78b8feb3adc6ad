# SPDX-License-Identifier: Apache-2.0
"""A picture of the blocks that each query chose."""

from __future__ import annotations

from pathlib import Path

import torch

from demo_lib.workload import BLOCK, HEADS, Workload


def plot(path: Path, answers: list[tuple[Workload, torch.Tensor]]) -> None:
    """Draw, for each workload, the heads that chose each block, and circles round the needles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(answers), figsize=(12, 4.2 * len(answers)), squeeze=False)
    for axis, (workload, chosen) in zip(axes[:, 0], answers, strict=True):
        image = axis.imshow(
            _heads_a_block(workload, chosen),
            aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=HEADS,
        )  # fmt: skip
        _circle_needles(axis, workload)
        limit = workload.extents.cpu()
        edges = torch.arange(len(limit) + 1) - 0.5
        axis.stairs(limit - 0.5, edges, orientation="horizontal", color="grey", lw=0.8)
        axis.set(title=workload.name, xlabel=f"block of {BLOCK} keys", ylabel="query token")
        figure.colorbar(image, ax=axis, label="heads that chose it", ticks=range(HEADS + 1))
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def _heads_a_block(workload: Workload, chosen: torch.Tensor) -> torch.Tensor:
    blocks = max(request.blocks for request in workload.requests)
    ids = torch.where(chosen < 0, blocks, chosen).long().flatten(1).cpu()
    count = torch.zeros(len(ids), blocks + 1, dtype=torch.int32)
    return count.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.int32))[:, :blocks]


def _circle_needles(axis: object, workload: Workload) -> None:
    needles = torch.cat([request.needles for request in workload.requests]).flatten(1).cpu()
    rows = torch.arange(len(needles))[:, None].expand_as(needles)
    size = 60 if len(needles) < 40 else 1
    axis.scatter(  # type: ignore[attr-defined]
        (needles // BLOCK).flatten(), rows.flatten(), s=size,
        facecolors="none", edgecolors="crimson", linewidths=0.8, label="needle",
    )  # fmt: skip
    axis.legend(loc="lower right")  # type: ignore[attr-defined]
