# SPDX-License-Identifier: Apache-2.0
"""Run the op with guard words round every tensor, and compare its answer exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import oracle
import torch
from dispatch import ROW_BOUNDS, kernel_of, kind_of
from layouts import LAYOUTS
from scores import FORMATS, INF, NAN

POISON = 0x7F7F7F7F  # what `output` holds before the call: no id, and no -1
GUARD_WORD = 0x5A5A5A5A
GUARD = 64  # words on either side: two cache lines
MAX_CROWD = 1 << 25  # scores


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as integers: NaN equals itself there."""
    return tensor if tensor.dtype == torch.int32 else tensor.view(FORMATS[tensor.dtype].integer)


class Guarded:
    """A view inside a larger buffer whose other words must survive the call."""

    def __init__(self, shape, strides, fill: torch.Tensor, offset: int = 0) -> None:
        empty = 0 in shape
        extent = 0 if empty else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        words = 2 * GUARD + extent + offset
        self.buffer = fill.repeat(-(-words // len(fill)))[:words].clone()
        self.start, self.extent = GUARD + offset, extent
        self.view = self.buffer.as_strided(shape, strides, self.start)

    @classmethod
    def scores(cls, values: torch.Tensor, layout: str = "s_contiguous", offset: int = 0):
        """Place `values` so that whoever reads a neighbour finds something that would win."""
        strides = LAYOUTS[layout](*values.shape)
        junk = torch.tensor([INF, NAN, 1e30, NAN, INF], dtype=values.dtype, device=values.device)
        self = cls(values.shape, strides, junk, offset)
        target = bits(self.buffer).as_strided(values.shape, strides, self.start)
        if strides[0] == 0:  # one copy in memory serves every head
            target, values = target[:1], values[:1]
        target.copy_(bits(values.contiguous()))
        return self.freeze()

    @classmethod
    def extents(cls, values: torch.Tensor, offset: int = 0):
        junk = torch.tensor([2**31 - 1, 5, -7], dtype=torch.int32, device=values.device)
        self = cls(values.shape, (1,), junk, offset)
        self.view.copy_(values)
        return self.freeze()

    @classmethod
    def output(cls, shape, device, offset: int = 0):
        fill = torch.tensor([GUARD_WORD], dtype=torch.int32, device=device)
        strides = (shape[1] * shape[2], shape[2], 1)
        self = cls(shape, strides, fill, offset)
        self.view.fill_(POISON)
        return self

    def freeze(self):
        """Remember every word of the buffer, padding included."""
        self.before = bits(self.buffer).clone()
        return self

    def changed(self) -> torch.Tensor:
        return (bits(self.buffer) != self.before).any()

    def guards_touched(self) -> torch.Tensor:
        outside = torch.cat((self.buffer[: self.start], self.buffer[self.start + self.extent :]))
        return (outside != GUARD_WORD).any()

    def unwritten(self) -> torch.Tensor:
        return (self.view == POISON).any()


class Trial:
    """One call with everything guarded. Nothing here waits for the device."""

    def __init__(
        self,
        values: torch.Tensor,
        topk: int,
        extent: Any = None,
        begin: int = 0,
        end: int = 0,
        layout: str = "s_contiguous",
        offset: int = 0,
    ) -> None:
        heads, _, tokens = values.shape
        self.arguments = (topk, extent, begin, end)
        self.scores = Guarded.scores(values, layout, offset)
        self.inputs = [self.scores]
        if isinstance(extent, torch.Tensor):
            guarded = Guarded.extents(extent, offset)
            self.inputs.append(guarded)
            self.arguments = (topk, guarded.view, begin, end)
        self.output = Guarded.output((tokens, heads, topk), values.device, offset)

    def run(self, op: Callable[..., torch.Tensor]) -> torch.Tensor:
        topk, extent, begin, end = self.arguments
        return op(
            self.scores.view,
            topk,
            num_valid_pages=extent,
            output=self.output.view,
            force_begin_blocks=begin,
            force_end_blocks=end,
        )

    def faults(self) -> dict[str, torch.Tensor]:
        """Return what must be false after the call, as scalars on the device."""
        return {
            "wrote outside output": self.output.guards_touched(),
            "left a slot of output unwritten": self.output.unwritten(),
            "changed an input": torch.stack([i.changed() for i in self.inputs]).any(),
        }


def run_guarded(
    values: torch.Tensor,
    topk: int,
    extent: Any = None,
    begin: int = 0,
    end: int = 0,
    *,
    layout: str = "s_contiguous",
    offset: int = 0,
    op: Callable[..., torch.Tensor] | None = None,
) -> torch.Tensor:
    """Call the op on guarded copies, check every guard, and return its output."""
    return _run(Trial(values, topk, extent, begin, end, layout, offset), op)


def check(values, topk, extent=None, begin=0, end=0, *, layout="s_contiguous", offset=0, op=None):
    """Run guarded, compare with the oracle bit for bit, and return the output.

    On a GPU the same tokens run again, repeated until kernels for more rows take over: every test
    meets all families, and a row must not care about its company.
    """
    trial = Trial(values, topk, extent, begin, end, layout, offset)
    output = _run(trial, op)
    expected = oracle.select(trial.scores.view, topk, extent, begin, end)
    assert_exact(output, expected, trial.scores.view, extent)
    for times in crowds(topk, tuple(values.shape), layout) if values.is_cuda else ():
        longer = extent.repeat(times) if isinstance(extent, torch.Tensor) else extent
        crowd = Trial(values.repeat(1, 1, times), topk, longer, begin, end, layout, offset)
        crowd_output = _run(crowd, op)
        assert_exact(crowd_output, expected.repeat(times, 1, 1), crowd.scores.view, longer)
    return output


def crowds(topk: int, shape: tuple[int, int, int], layout: str) -> Iterator[int]:
    """Yield how often to repeat the tokens to meet each kernel that is for more rows."""
    heads, blocks, tokens = shape
    met = {kind_of(kernel_of(topk, shape, layout))}
    for rows in ROW_BOUNDS if heads * tokens else ():
        times = -(-rows // (heads * tokens))
        kind = kind_of(kernel_of(topk, (heads, blocks, tokens * times), layout))
        if kind not in met and heads * blocks * tokens * times <= MAX_CROWD:
            met.add(kind)
            yield times


def _run(trial: Trial, op: Callable[..., torch.Tensor] | None) -> torch.Tensor:
    if op is None:
        from flashinfer_msa.msa_ops import msa_topk_select as op
    result = trial.run(op)
    assert result is trial.output.view, "output must be returned as it was given"
    broken = [what for what, flag in trial.faults().items() if flag]
    assert not broken, f"the call {' and '.join(broken)}"
    return result


def assert_exact(output, expected, scores=None, extent=None) -> None:
    """Compare selections, and tell the first bad row with the scores in question."""
    assert output.dtype == torch.int32
    assert output.shape == expected.shape
    output, expected = output.cpu(), expected.cpu()
    bad = (output != expected).any(-1).nonzero()
    if len(bad) == 0:
        return
    s, h = bad[0].tolist()
    got, want = output[s, h].tolist(), expected[s, h].tolist()
    lines = [f"{len(bad)} bad rows of {output[..., 0].numel()}; first: token {s}, head {h}"]
    if isinstance(extent, torch.Tensor):
        lines.append(f"extent {extent[s].item()}")
    lines += [f"got  {got}", f"want {want}"]
    if scores is not None:
        row = scores[h, :, s].cpu()
        for i in sorted(set(got) ^ set(want)):
            value = row[i].item() if 0 <= i < len(row) else "outside"
            lines.append(f"{'wrong' if i in got else 'missing'} {i}: score {value}")
    raise AssertionError("\n".join(lines))
