# SPDX-License-Identifier: Apache-2.0
"""What scripts/sanitize watches reaches every kernel; its calls and its tally, without a GPU."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from dispatch import kernels

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")


def module(name: str):
    return importlib.import_module(f"sanitize_lib.{name}")


@pytest.mark.parametrize("quick", [True, False])
def test_the_selections_reach_every_kernel_of_every_build(quick):
    selection = module("selection")
    for choose, forms in (("race_calls", {"token"}), ("all_calls", {"token", "uniform"})):
        calls = [*getattr(selection, choose)(quick)]
        specs = {call.spec for call in calls}
        assert specs == set(selection.SPECS[:1] if quick else selection.SPECS)
        assert {call.form for call in calls} == forms
        for spec in specs:
            for form in forms:
                met = {c.kernel for c in calls if (c.spec, c.form) == (spec, form)}
                assert met == set(kernels(spec.topk)), (choose, spec, form)


def test_the_shapes_are_those_of_their_kernels():
    selection = module("selection")
    for call in selection.all_calls(quick=False):
        table = selection.SMALLEST if "expanded" in call.layout else selection.NEAREST
        assert table[call.kernel] == call.shape


def test_there_is_little_to_watch_for_races():
    """Racecheck is slow: two calls a kernel, and few rows in them that are not empty."""
    selection, calls = module("selection"), module("calls")
    for call in selection.race_calls(quick=True):
        extent = calls.make_extent(call)
        assert call.shape[0] * int((extent > 0).sum()) < 3100
        assert extent[0] == extent[-1] == call.shape[1]
        assert call.shape[1] <= 128 or (extent > 0).logical_and(extent <= 128).any()
    assert len([*selection.race_calls(quick=True)]) == 2 * len(kernels(16))


@pytest.mark.parametrize("guarded", [True, False])
def test_the_calls_are_placed_and_compared_as_they_should_be(monkeypatch, guarded):
    selection, calls = module("selection"), module("calls")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    for call in selection.all_calls(quick=True):
        heads, blocks, tokens = call.shape
        if heads * blocks * tokens <= 200_000:
            calls.run(call, guarded)
        scores = calls.place(calls.make_values(call), call)
        assert scores.shape == call.shape
        assert scores.untyped_storage().nbytes() // scores.element_size() == call.offset + 1 + sum(
            (n - 1) * stride for n, stride in zip(scores.shape, scores.stride(), strict=True)
        )


def test_a_run_stops_at_its_limit_and_tells_what_it_reached(monkeypatch, capsys):
    selection, calls = module("selection"), module("calls")
    monkeypatch.setattr(calls, "run", lambda call, guarded: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    chosen = [*selection.race_calls(quick=True)]
    assert calls.run_all(chosen, False, 1e9) == 0
    every = len(kernels(16))
    assert f"{every} of {every} kernels called" in capsys.readouterr().out
    assert calls.run_all(chosen, False, -1.0) == calls.STOPPED
    said = capsys.readouterr().out
    assert f"0 of {every} kernels called" in said
    assert "RowPerQuad" in said


# Takes the part of compute-sanitizer: writes a report, then runs what stands after the options.
FAKE = """#!/bin/sh
while [ "$1" != --log-file ]; do shift; done
echo "========= {summary}" >"$2"
shift 2
exec "$@"
"""


@pytest.mark.parametrize(
    ("summary", "code", "result"),
    [
        ("ERROR SUMMARY: 0 errors", "print('30/30 1.0 s RowPerQuad')", "clean"),
        ("ERROR SUMMARY: 2 errors", "raise SystemExit(86)", "found"),
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
         "print('9 of 15 kernels called'); raise SystemExit(3)", "stopped, 9 of 15 kernels called"),
        ("nothing", "raise SystemExit(1)", "no summary (1)"),
        ("ERROR SUMMARY: 0 errors", "raise SystemExit(1)", "failed (1)"),
        ("nothing", "import time; print('7/30 1.0 s', flush=True); time.sleep(60)",
         "timed out, 7/30"),
    ],
)  # fmt: skip
def test_the_tally_tells_what_a_tool_came_to(tmp_path, summary, code, result):
    tool = module("__main__")
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(FAKE.format(summary=summary))
    fake.chmod(0o755)
    limit = 2.0 if "sleep" in code else 60.0
    command = [sys.executable, "-c", code]
    step = tool.run_tool("racecheck", str(fake), command, tmp_path, limit)
    assert step.result == result
    assert tool.STOPPED == module("calls").STOPPED


def test_the_parts_of_a_run_are_all_of_it(monkeypatch):
    selection, calls = module("selection"), module("calls")
    made = []
    monkeypatch.setattr(calls, "run_all", lambda part, guarded, limit: made.append(part))
    for part in ("0/3", "1/3", "2/3"):
        monkeypatch.setattr(sys, "argv", ["calls", "--quick", "--part", part])
        calls.main()
    every = [str(call) for call in selection.all_calls(quick=True)]
    assert sorted(str(call) for part in made for call in part) == sorted(every)
    assert max(map(len, made)) - min(map(len, made)) <= 1


@pytest.mark.parametrize(("jobs", "parts"), [(1, 1), (11, 2), (64, 4)])
def test_tools_and_their_parts_run_side_by_side(tmp_path, jobs, parts):
    """Each waits for all others before it ends."""
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(FAKE.format(summary="ERROR SUMMARY: 0 errors"))
    fake.chmod(0o755)
    tools = module("__main__").TOOLS
    code = f"""
import pathlib, sys, time
folder = pathlib.Path({str(tmp_path)!r})
(folder / f"{{time.monotonic_ns()}}.started").touch()
while len([*folder.glob("*.started")]) < {len(tools) * parts}:
    time.sleep(0.01)
"""
    command = [sys.executable, "-c", code]
    steps = [*module("__main__").run_tools(tools, str(fake), command, tmp_path, 60.0, jobs)]
    several = [f" {part} of {parts}" for part in range(parts)] if parts > 1 else [""]
    names = [tool + part for tool in tools for part in several]
    assert [(step.name, step.result) for step in steps] == [(name, "clean") for name in names]
    assert all((tmp_path / f"{name}.report").is_file() for name in names)
