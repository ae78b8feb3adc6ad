# SPDX-License-Identifier: Apache-2.0
"""A wheel of two prebuilt kernels, built once for all tests that look at it."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
SPECS = ("topk_select_k16_f32_b0_e1_token", "topk_select_k64_f32_bx_ex_uniform")
TREE = ("flashinfer_msa", "include", "templates", "aot", "LICENSE", "README.md", "pyproject.toml")


def copy_tree(source: Path, to: Path) -> Path:
    """Copy what a build reads."""
    to.mkdir(parents=True)
    for name in TREE:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy
        copy(source / name, to / name)
    return to


def build(tree: Path, out: Path, specs: Sequence[str] = SPECS, **environment: str) -> Path:
    """Build the wheel of some kernels as a user does."""
    command = [sys.executable, str(tree / "aot" / "build_wheel.py"), "--out", str(out)]
    command += ["--arch", "8.0", "--arch", "9.0", *(w for s in specs for w in ("--spec", s))]
    env = {**os.environ, "FLASHINFER_MSA_DISABLE_JIT": "1", **environment}
    done = subprocess.run(command, cwd=out.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (out / "log").write_text(done.stdout)
    (wheel,) = out.glob("*.whl")
    return wheel


class Built(NamedTuple):
    """The wheel, the copy of the sources that it was made of, and the folder of both."""

    folder: Path
    tree: Path
    wheel: Path


@functools.cache
def build_once(base: Path) -> Built:
    """Build the wheel below a run's folder, for all files of tests and all processes of the run."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # else it is one process's own
    folder = base / "aot"
    with FileLock(base / "aot.lock"):
        if not folder.exists():
            tree = copy_tree(ROOT, folder / "tree")
            build(tree, folder / "dist")
    (wheel,) = (folder / "dist").glob("flashinfer_msa_aot-*.whl")
    return Built(folder, folder / "tree", wheel)
