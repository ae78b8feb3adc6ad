#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the wheel `flashinfer-msa-aot` of prebuilt kernels.

    python aot/build_wheel.py --arch 8.0 --arch 9.0 --out dist

No GPU is needed, and no torch: a CUDA toolkit, gcc, and the packages ninja, jinja2 and filelock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # run as a script: `aot` and the package of this very tree

from aot.artifacts import Artifact, compile_all, wheel_settings  # noqa: E402
from aot.matrix import ARCHS, matrix, wheel_target  # noqa: E402
from aot.symbols import Version  # noqa: E402
from aot.wheel import write_wheel  # noqa: E402
from flashinfer_msa.jit import CompileError, Target, ToolchainError  # noqa: E402
from flashinfer_msa.jit import aot as lookup  # noqa: E402
from flashinfer_msa.jit.toolchain import Toolchain  # noqa: E402
from flashinfer_msa.spec import TopKSelectSpec  # noqa: E402

_METADATA = """\
Metadata-Version: 2.1
Name: flashinfer-msa-aot
Version: {version}
Summary: Prebuilt kernels for flashinfer-msa
License: Apache-2.0
Requires-Python: >=3.10
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/plain

Kernels of flashinfer-msa {version} for GPUs {codes}.
flashinfer-msa uses them only if they were built from its own sources; otherwise it ignores them
with one warning. Each contains the CUDA runtime, which is NVIDIA's and under its own licence.
"""


def manifest(
    artifacts: Sequence[Artifact], target: Target, toolchain: Toolchain, flags: Sequence[str]
) -> dict[str, Any]:
    """Return what the wheel tells of itself; `flashinfer_msa.jit.aot` reads it."""
    entries = {artifact.name: artifact.entry for artifact in artifacts}
    return {
        **lookup.describe_wheel(toolchain.identity["nvcc"], entries),
        "arch": list(target.codes),
        "glibc": _dotted(_floor(artifacts)),
        "host_compiler": toolchain.identity["host"],
        "flags": [*flags, *(f for f in toolchain.own_flags if f)],
    }


def _floor(artifacts: Sequence[Artifact]) -> Version:
    return max(artifact.glibc for artifact in artifacts)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def pack(artifacts: Sequence[Artifact], facts: dict[str, Any], out: Path) -> Path:
    """Write the wheel; its tag is what the libraries' symbols allow."""
    package, version = lookup.MODULE, facts["package_version"]
    files = {f"{package}/{one.entry['file']}": one.data for one in artifacts}
    files[f"{package}/{lookup.MANIFEST}"] = json.dumps(facts, indent=1, sort_keys=True).encode()
    about = f'"""Prebuilt kernels; flashinfer_msa finds them."""\n\n__version__ = "{version}"\n'
    files[f"{package}/__init__.py"] = about.encode()
    files[f"{package}-{version}.dist-info/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    tag = f"py3-none-manylinux_{'_'.join(map(str, _floor(artifacts)))}_{facts['machine']}"
    metadata = _METADATA.format(version=version, codes=", ".join(facts["arch"]))
    return write_wheel(out, package, version, tag, files, metadata)


class Progress:
    """Prints one line for each kernel that is ready."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def __call__(self, artifact: Artifact) -> None:
        """Print the next line."""
        self.done += 1
        size = f"{len(artifact.data) / 1024:.0f} KiB"
        codes = " ".join(artifact.entry["arch"])
        print(
            f"[{self.done}/{self.total}] {artifact.name}  {artifact.seconds:.1f} s  {size}  {codes}"
            f"  glibc {_dotted(artifact.glibc)}",
            flush=True,
        )


def _report(wheel: Path, artifacts: Sequence[Artifact], seconds: float) -> None:
    data, unpacked = wheel.read_bytes(), sum(len(artifact.data) for artifact in artifacts)
    print(
        f"{wheel}: {len(artifacts)} kernels, {len(data) / 2**20:.1f} MiB packed, "
        f"{unpacked / 2**20:.1f} MiB installed, {seconds:.0f} s\n"
        f"sha256 {hashlib.sha256(data).hexdigest()}"
    )


def build(options: argparse.Namespace) -> Path:
    """Build the wheel that the options describe.

    Raises
    ------
    ToolchainError, CompileError
        As the compiler driver raises them.
    ValueError
        An option is malformed, or the sources changed while they were compiled.
    """
    began = time.monotonic()
    target = wheel_target(options.arch or ARCHS, options.ptx)
    specs = [TopKSelectSpec.parse(name) for name in options.spec] or list(matrix())
    specs = list(dict.fromkeys(specs))
    settings, toolchain = wheel_settings(options.cuda_home, options.jobs)
    sources = lookup.source_hash()
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"building {len(specs)} kernels for {target.name}", flush=True)
    done = compile_all(specs, target, toolchain, settings, options.out, Progress(len(specs)))
    facts = manifest(done, target, toolchain, settings.extra_nvcc_flags)
    if facts["source_hash"] != sources:
        raise ValueError("headers or templates changed during the build; build again")
    if set(facts["artifacts"]) != {spec.name for spec in specs}:
        raise ValueError("the wheel would be incomplete; build again")
    wheel = pack(done, facts, options.out)
    _report(wheel, done, time.monotonic() - began)
    return wheel


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    add = parser.add_argument
    add("--arch", action="append", default=[], metavar="X.Y", help=f"default: {' '.join(ARCHS)}")
    add("--ptx", default="newest", metavar="newest|none|X.Y", help="portable code, for newer GPUs")
    add("--out", type=Path, default=Path("dist"), metavar="DIR")
    add("--cuda-home", default="", metavar="DIR", help="toolkit to use instead of CUDA_HOME")
    add("--jobs", type=int, metavar="N", help="compilers side by side (MAX_JOBS, or what fits)")
    add("--spec", action="append", default=[], metavar="NAME", help="this kernel only; repeatable")
    return parser.parse_args(words)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    pass


def main(words: Sequence[str] | None = None) -> int:
    """Build, and return the exit code."""
    options = parse(words)
    try:
        build(options)
    except (ToolchainError, CompileError, ValueError) as error:
        print(f"build_wheel: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("build_wheel: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
