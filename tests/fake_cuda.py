# SPDX-License-Identifier: Apache-2.0
"""A CUDA toolkit whose nvcc is a script, and a kernel that is three lines of C.

The script logs each call, can sleep, fail or be killed, and has gcc make a real library with the
ABI symbol and a fat binary that lists the promised architectures. Run as a program, this file is
one process of a test of many: it loads kernels and prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GCC = os.path.realpath(shutil.which("gcc") or "/usr/bin/gcc")
TESTS = Path(__file__).resolve().parent

_NVCC = """#!{python} -ISs
import json, os, re, signal, subprocess, sys, time
root = {root!r}
how = json.load(open(os.path.join(root, "how.json")))
words = sys.argv[1:]
with open(os.path.join(root, "calls.log"), "ab", buffering=0) as log:
    log.write((json.dumps([os.getpid(), *words]) + "\\n").encode())
if "--version" in words:
    if how["version_fails"]:
        sys.exit("nvcc: no version today")
    print("Cuda compilation tools, release 13.0, V" + how["version"])
    print("Build cuda_" + how["version"] + "/compiler.1_0")
    sys.exit(0)
if how["sleep"]:
    subprocess.run(["sleep", str(how["sleep"])])
if how["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
if how["fails"]:
    print("a.cu(3): warning #1: never mind", file=sys.stderr)
    print(how["fails"], file=sys.stderr)
    sys.exit(1)
out = words[words.index("-o") + 1]
if "-c" in words:
    source = words[words.index("-c") + 1]
    codes = re.findall(r"code=(sm|compute)_(\\d+)", " ".join(words))
    codes = codes if how["codes"] is None else how["codes"]
    flags = ["-I" + w[2:] for w in words if w.startswith("-I")]
    entries = b"".join((2 if kind == "sm" else 1).to_bytes(2, "little") + b"\\1\\1"
                       + (64).to_bytes(4, "little") + bytes(20)
                       + int(number).to_bytes(4, "little") + bytes(32) for kind, number in codes)
    header = (0xBA55ED50).to_bytes(4, "little") + b"\\1\\0\\x10\\0"
    data = header + len(entries).to_bytes(8, "little") + entries
    listed = ",".join(map(str, data))
    text = '__attribute__((section(".nv_fatbin"), used)) static const unsigned char fat[] = '
    text += "{{" + listed + "}};\\n#include \\"" + source + "\\"\\n"
    command = [{gcc!r}, "-x", "c", "-I.", *flags, "-fPIC", "-c", "-", "-o", out]
    sys.exit(subprocess.run(command, input=text.encode()).returncode)
objects = [w for w in words if w.endswith(".o") and w != out]
code = subprocess.run([{gcc!r}, "-shared", *objects, "-o", out]).returncode
if how["truncates"] and code == 0:
    os.truncate(out, os.path.getsize(out) // 2)
sys.exit(code)
"""


class FakeCuda:
    """A toolkit below `root`; `set` changes how its nvcc behaves from the next call on."""

    def __init__(self, root: Path, version: str = "13.0.88") -> None:
        self.root = root
        self._how: dict[str, Any] = {"version": version, "sleep": 0, "killed": False, "fails": ""}
        self._how |= {"codes": None, "truncates": False, "version_fails": False}
        nvcc = root / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(_NVCC.format(python=sys.executable, root=str(root), gcc=GCC), "utf-8")
        nvcc.chmod(0o755)
        self.set()

    def set(self, **how: Any) -> None:
        """Change the behaviour."""
        self._how |= how
        draft = self.root / "how.draft"
        draft.write_text(json.dumps(self._how))
        draft.replace(self.root / "how.json")

    def calls(self, word: str = "") -> list[list[Any]]:
        """Return the calls that contain `word`, each as [pid, word, word, ...]."""
        log = self.root / "calls.log"
        lines = log.read_text().splitlines() if log.exists() else []
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if not word or word in call]

    def compiles(self) -> int:
        """Return how many translation units were compiled."""
        return len(self.calls("-c"))


@dataclass(frozen=True)
class DummySpec:
    """A kernel for the tests: one translation unit that returns `abi`."""

    tag: str = "0"
    abi: int = 1
    body: str = ""
    promised: int | None = None

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return f"dummy_{self.tag}"

    def sources(self) -> dict[str, str]:
        """Return the one source."""
        value = self.abi if self.promised is None else self.promised
        text = '#include "flashinfer_msa/dummy.cuh"\n' + self.body
        return {"a.cu": f"{text}\nint flashinfer_msa_abi_version(void) {{ return {value}; }}\n"}


def make_data(parent: Path) -> None:
    """Create a package's data folders with one header and one template."""
    (parent / "include" / "flashinfer_msa").mkdir(parents=True)
    (parent / "include" / "flashinfer_msa" / "dummy.cuh").write_text("#define DUMMY 1\n")
    (parent / "templates").mkdir()
    (parent / "templates" / "dummy.cu.jinja").write_text("{{ name }}\n")


def use_data(parent: Path) -> None:
    """Make this process's package use those folders."""
    from flashinfer_msa import env

    env.include_dir = lambda: parent / "include"
    env.template_dir = lambda: parent / "templates"


class Machine:
    """A home, a cache, a toolkit and the package's data, all below one folder."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        from flashinfer_msa import env
        from flashinfer_msa.jit import log, toolchain

        self.folder, self.cache, self.data = folder, folder / "cache", folder / "data"
        self.patch = monkeypatch
        self.cuda = FakeCuda(folder / "cuda")
        make_data(self.data)
        for variable in env.VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        (folder / "tmp").mkdir()
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
        monkeypatch.setenv("FLASHINFER_MSA_CACHE_DIR", str(self.cache))
        monkeypatch.setenv("CUDA_HOME", str(self.cuda.root))
        monkeypatch.setattr(env, "include_dir", lambda: self.data / "include")
        monkeypatch.setattr(env, "template_dir", lambda: self.data / "templates")
        monkeypatch.setattr(toolchain, "DEFAULT_ROOT", folder / "no_default_root")
        monkeypatch.setattr(log, "_warned", set())

    def load(self, spec: DummySpec | None = None, capability: tuple[int, int] = (9, 0)) -> Any:
        """Load a kernel as a process that has loaded nothing yet would."""
        from flashinfer_msa import jit
        from flashinfer_msa.jit import loader

        self.patch.setattr(loader, "_memo", {})
        return jit.load(spec or DummySpec(), capability)

    def entries(self) -> list[Path]:
        """Return the published entries."""
        return sorted(self.cache.glob("v1/*/*"))

    def library(self) -> Path:
        """Return the library of the only entry."""
        (entry,) = self.entries()
        return entry / "lib.so"

    def edit_meta(self, **changes: Any) -> None:
        """Change the manifest of the only entry."""
        path = self.library().with_name("meta.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def hide_tools(self) -> None:
        """Leave no compiler, no ninja and no toolkit on this machine."""
        self.patch.setenv("PATH", str(self.folder / "empty"))
        self.patch.delenv("CUDA_HOME", raising=False)

    def start(self, *tags: str, before: str = "", **environment: str) -> subprocess.Popen[str]:
        """Start another process of this machine that loads kernels."""
        return start(self.data, *tags, before=before, **environment)


def python_path() -> str:
    """Return a PYTHONPATH that leads to the package, the tests and what this process uses."""
    parts = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(part for part in parts if part)


def sleepers(marker: str) -> list[int]:
    """Return the processes that run `sleep <marker>`: grandchildren of a test's build."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", marker.encode()]:
                found.append(int(path.parent.name))
        except OSError:
            pass
    return [pid for pid in found if not has_ended(pid)]


def start(data: Path, *tags: str, before: str = "", **environment: str) -> subprocess.Popen[str]:
    """Start a process that runs `before`, then loads a kernel for each tag."""
    command = [sys.executable, str(TESTS / "fake_cuda.py"), str(data), before, *tags]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 60) -> dict[str, Any]:
    """Return what such a process printed; fail if it did."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return {**json.loads(out), "stderr": err}


def wait_until(condition: Any, timeout: float = 20) -> None:
    """Wait for a condition that another process brings about."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Tell whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _main(data: str, before: str, *tags: str) -> None:
    use_data(Path(data))
    exec(before, {})
    from flashinfer_msa import jit

    began = time.monotonic()
    versions = [jit.load(DummySpec(tag), (9, 0)).flashinfer_msa_abi_version() for tag in tags]
    print(json.dumps({"versions": versions, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    _main(*sys.argv[1:])


def started(machine: Machine) -> bool:
    """Whether a build has reached the compiler."""
    return machine.cuda.compiles() > 0
