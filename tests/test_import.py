# SPDX-License-Identifier: Apache-2.0
"""``import flashinfer_msa`` starts nothing, writes nothing and costs next to nothing."""

import os
import subprocess
import sys
from pathlib import Path

import flashinfer_msa

ROOT = Path(flashinfer_msa.__file__).parents[1]


def python(code: str, **environment: str) -> str:
    """Run `code` in a fresh interpreter and return what it prints."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TIMED = """
import time, torch
start = time.perf_counter()
import {module}
print((time.perf_counter() - start) * 1e3)
"""


def test_import_adds_less_than_50_ms_to_torch():
    """The best of some runs: the others measure the neighbours."""
    times = []
    for _ in range(5):
        times.append(float(python(TIMED.format(module="flashinfer_msa"))))
        if times[-1] < 25:
            break
    assert min(times) < 50, times


AUDITED = """
import sys, torch
events = []
def audit(event, args):
    if event in ("os.mkdir", "os.rename", "os.remove", "subprocess.Popen", "os.system",
                 "os.posix_spawn", "os.exec", "ctypes.dlopen", "socket.connect"):
        events.append((event, str(args)))
    if event == "open" and (args[1] or "r").strip("bt") != "r":
        events.append((event, str(args)))
    if event == "open" and str(args[0]).endswith((".so", ".cuh", ".jinja", ".json", ".toml")):
        events.append((event, str(args)))
sys.addaudithook(audit)
import flashinfer_msa
before = set(sys.modules)
print(events, torch.cuda.is_initialized())
"""


def test_import_starts_no_cuda_and_no_process_and_writes_nothing(tmp_path):
    cache = tmp_path / "cache"
    said = python(AUDITED, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path),
                  FLASHINFER_MSA_CACHE_DIR=str(cache))  # fmt: skip
    assert said == "[] False"
    assert list(tmp_path.iterdir()) == []


def test_import_loads_no_build_tools():
    code = """
import sys, flashinfer_msa
print([m for m in ("jinja2", "ninja", "filelock", "numpy", "torch") if m in sys.modules])
"""
    assert python(code) == "[]"


def test_importing_the_op_loads_no_build_tools_and_starts_no_cuda(tmp_path):
    """The tools load with the first build, which a machine with a wheel never makes."""
    code = """
import sys, torch
from flashinfer_msa.msa_ops import msa_topk_select
tools = [m for m in ("jinja2", "ninja", "filelock") if m in sys.modules]
ids = msa_topk_select(torch.zeros(1, 3, 1), 2).flatten().tolist()
tools += [m for m in ("jinja2", "ninja", "filelock") if m in sys.modules]
print(ids, [m for m in tools if m != "jinja2" or "torch._inductor" not in sys.modules],
      torch.cuda.is_initialized())
"""
    said = python(code, HOME=str(tmp_path), FLASHINFER_MSA_CACHE_DIR=str(tmp_path / "cache"))
    assert said == "[0, 1] [] False"
    assert not (tmp_path / "cache").exists()


def test_public_names_load_when_first_used():
    for name in ("msa_topk_select", "msa_topk_select_reference", "TopKSelectSpec"):
        assert name in dir(flashinfer_msa)
        assert getattr(flashinfer_msa, name).__module__.startswith("flashinfer_msa.")
    from flashinfer_msa.msa_ops import msa_topk_select

    assert flashinfer_msa.msa_topk_select is msa_topk_select


def test_public_names_are_the_same_whatever_was_imported_first():
    """A submodule of the same name must not take the place of a function."""
    code = """
import importlib, flashinfer_msa
for module in sorted(set(flashinfer_msa._HOME.values())):
    importlib.import_module(module)
names = [n for n in flashinfer_msa.__all__ if n != "__version__"]
print([n for n in names if type(getattr(flashinfer_msa, n)).__name__ == "module"])
"""
    assert python(code) == "[]"


def test_msa_ops_is_there_as_it_is_in_flashinfer():
    code = "import flashinfer_msa; print(flashinfer_msa.msa_ops.msa_topk_select.__name__)"
    assert python(code) == "msa_topk_select"
