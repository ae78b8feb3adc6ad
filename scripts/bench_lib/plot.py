# SPDX-License-Identifier: Apache-2.0
"""Time over the number of blocks, one panel for each kind and number of tokens."""

from __future__ import annotations

from pathlib import Path

from bench_lib.measure import Row


def plot(path: Path, rows: list[Row], title: str) -> None:
    """Draw the standard cold rows of 4 heads, with the floor and the fastest peer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        case = row.case
        if case.is_standard and case.heat == "cold" and case.heads == 4 and case.order == "S":
            panels.setdefault((case.kind, case.tokens), []).append(row)
    panels = {key: line for key, line in sorted(panels.items()) if len(line) > 1}
    columns = min(len(panels), 4) or 1
    lines = -(-len(panels) // columns) or 1
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(4.2 * columns, 3.4 * lines), squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, ((kind, tokens), line) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, f"{kind}, {tokens} tokens", sorted(line, key=lambda row: row.case.blocks))
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def _panel(axis: object, title: str, line: list[Row]) -> None:
    blocks = [row.case.blocks for row in line]
    axis.plot(blocks, [row.time for row in line], "o-", label="msa_topk_select")  # type: ignore[attr-defined]
    axis.plot(blocks, [row.floor for row in line], "k--", label="read floor")  # type: ignore[attr-defined]
    raced = [row for row in line if row.best_peer is not None]
    if raced:
        times = [row.best_peer[1] for row in raced if row.best_peer]
        axis.plot([r.case.blocks for r in raced], times, "s:", label="fastest peer")  # type: ignore[attr-defined]
    axis.set(xscale="log", yscale="log", title=title, xlabel="blocks", ylabel="us")  # type: ignore[attr-defined]
    axis.legend(fontsize="small")  # type: ignore[attr-defined]
    axis.grid(alpha=0.3, which="both")  # type: ignore[attr-defined]
