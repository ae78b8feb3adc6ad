# SPDX-License-Identifier: Apache-2.0
"""Run the GPU tests on the prebuilt wheel alone: no nvcc, no JIT, an empty cache.

The kernels' wheel is built and installed by pip. The package itself is laid out beside it as its
own wheel lays it out, because a machine without a network need not have its build backend.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_CLEAN = shutil.ignore_patterns("__pycache__")
# Tests that exercise the JIT itself, and why a wheel cannot stand in for it.
_DESELECTED: dict[str, str] = {}
_SOURCES = """
import flashinfer_msa, torch
from flashinfer_msa import jit
from flashinfer_msa.spec import common_specs
gpu = torch.cuda.get_device_capability()
sources = [jit.find(spec, gpu).source for spec in common_specs()]
assert set(sources) == {"aot"}, sources
print(len(sources), "kernels of", flashinfer_msa.__file__, "from the wheel")
"""


def build(out: Path, jobs: int) -> Path:
    """Build the whole wheel, or fail."""
    command = [sys.executable, str(_ROOT / "aot" / "build_wheel.py"), "--out", str(out)]
    subprocess.run([*command, "--arch", "8.0", "--arch", "9.0", "--jobs", str(jobs)], check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def install(wheel: Path, site: Path) -> None:
    """Install the kernels, and the package as its own wheel would."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-compile", "--target", str(site), str(wheel)], check=True)
    package = site / "flashinfer_msa"
    shutil.copytree(_ROOT / "flashinfer_msa", package, ignore=_CLEAN)
    for name in ("include", "templates"):
        shutil.copytree(_ROOT / name, package / name, ignore=_CLEAN)


def environment(site: Path, cache: Path) -> dict[str, str]:
    """Return an environment without a compiler of CUDA and without leave to compile."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "FLASHINFER_MSA_"))}
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        if name in os.environ:
            env[name] = os.environ[name]
    folders = env.get("PATH", "").split(os.pathsep)
    env["PATH"] = os.pathsep.join(f for f in folders if not (Path(f) / "nvcc").exists())
    env["PYTHONPATH"] = str(site)
    env["FLASHINFER_MSA_DISABLE_JIT"] = "1"
    env["FLASHINFER_MSA_CACHE_DIR"] = str(cache)
    return env


def run_tests(suite: Path, env: dict[str, str]) -> int:
    """Run the GPU tests away from the tree; return how many passed."""
    suite.mkdir()
    shutil.copytree(_ROOT / "tests", suite / "tests", ignore=_CLEAN)
    shutil.copy(_ROOT / "pyproject.toml", suite)
    command = [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests"]
    command += ["--ignore-glob", "*/test_aot_*"]  # they import `aot`, which is not installed
    for test, reason in _DESELECTED.items():
        print(f"left out: {test}: {reason}")
        command += ["--deselect", f"tests/{test}"]
    log = suite / "tests.log"
    with log.open("wb") as output:
        code = subprocess.run(command, cwd=suite, env=env, stdout=output, stderr=output).returncode
    text = log.read_text()
    print(text[-6000:])
    passed = re.search(r"(\d+) passed", text)
    if code != 0 or passed is None:
        sys.exit("the wheel does not serve the GPU tests")
    return int(passed[1])


def main() -> None:
    """Build, install, run the tests, and look that nothing was compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--wheel", type=Path, help="take this one, built elsewhere")
    options = parser.parse_args()
    work = options.out.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    site, cache = work / "site", work / "cache"
    install(options.wheel or build(work / "dist", options.jobs), site)
    env = environment(site, cache)
    assert shutil.which("nvcc", path=env["PATH"]) is None
    subprocess.run([sys.executable, "-c", _SOURCES], cwd=work, env=env, check=True)
    passed = run_tests(work / "suite", env)
    if cache.exists():
        sys.exit(f"something was written to the cache: {sorted(cache.rglob('*'))[:5]}")
    print(f"the wheel alone served {passed} GPU tests: no nvcc, no JIT, no cache")


if __name__ == "__main__":
    main()
