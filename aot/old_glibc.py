# SPDX-License-Identifier: Apache-2.0
"""Linking for an older glibc than the build machine's.

In 2.34 glibc moved the functions of libpthread, libdl and librt into libc, under a new version.
A library linked after that asks for the new version and does not load on older systems, although
the functions are the same. So it is linked against stand-ins for these three libraries which
define the functions under their old versions only. Every glibc, old or new, has those.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from flashinfer_msa.jit import ToolchainError

from .symbols import OLDEST_TAG, Version, glibc_version, read_symbols

_HOMES = {
    "libdl": ("libdl.so.2", re.compile(r"dl[a-z]+1?")),
    "librt": ("librt.so.1", re.compile(r"(shm|mq|aio|timer)_\w+")),
    "libpthread": ("libpthread.so.0", re.compile(r"(pthread|sem)_\w+")),
}


def moved_symbols(libc: bytes, floor: Version = OLDEST_TAG) -> dict[str, str]:
    """Return name -> old version of what a libc offers under a version above `floor` by default."""
    newest: dict[str, Version] = {}
    oldest: dict[str, list[Version]] = {}
    for symbol in read_symbols(libc):
        version = glibc_version(symbol.version)
        if not symbol.defined or version is None:
            continue
        if symbol.default:
            newest[symbol.name] = version
        if version <= floor:
            oldest.setdefault(symbol.name, []).append(version)
    moved = {name for name, version in newest.items() if version > floor} & oldest.keys()
    return {name: "GLIBC_" + ".".join(map(str, max(oldest[name]))) for name in sorted(moved)}


def _version_script(symbols: dict[str, str]) -> str:
    text = ""
    for version in sorted(set(symbols.values())):
        names = "; ".join(name for name, its in symbols.items() if its == version)
        text += f"{version} {{ global: {names}; }};\n"
    return text


def _run(command: list[str], folder: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolchainError(
            f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()[-500:]}; "
            "the wheel needs a working gcc (NVCC_CCBIN)"
        )
    return done.stdout.strip()


def write_stand_ins(folder: Path, host: Path) -> list[str]:
    """Create the stand-ins in a folder; return their names, none where glibc is old enough."""
    libc = Path(_run([str(host), "-print-file-name=libc.so.6"]))
    if not libc.is_file():
        raise ToolchainError(f"{host} does not tell where libc.so.6 is; the wheel needs glibc")
    moved = moved_symbols(libc.read_bytes())
    made = []
    for name, (soname, pattern) in _HOMES.items():
        symbols = {s: version for s, version in moved.items() if pattern.fullmatch(s)}
        if not symbols:
            continue
        source, script = folder / f"{name}.c", folder / f"{name}.map"
        source.write_text("".join(f"void {symbol}(void) {{}}\n" for symbol in symbols))
        script.write_text(_version_script(symbols))
        words = ["-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-w", f"-Wl,-soname,{soname}"]
        words += [f"-Wl,--version-script={script.name}", source.name, "-o", f"{name}.so"]
        _run([str(host), *words], folder)
        made.append(f"{name}.so")
    return made
