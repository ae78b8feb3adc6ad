# SPDX-License-Identifier: Apache-2.0
"""What a wheel's library may ask of a system; checked on libraries that gcc makes of a line."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aot.old_glibc import moved_symbols, write_stand_ins
from aot.symbols import (
    OLDEST_TAG,
    SymbolError,
    check_symbols,
    glibc_version,
    needed_libraries,
    read_symbols,
)
from flashinfer_msa.jit.elf import ElfError

GCC = shutil.which("gcc") or "gcc"
PLAIN = "#include <stdlib.h>\nvoid* f(void) { return malloc(1); }\n"
THREADED = "#include <pthread.h>\nstatic pthread_once_t o; void g(void); int f(void)"
THREADED += "{ static pthread_key_t k; return pthread_key_create(&k, 0); }\n"


def make(folder: Path, text: str, *flags: str) -> bytes:
    """Return a shared library of some C."""
    folder.mkdir(exist_ok=True)
    command = [GCC, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *flags, "-o", "made.so"]
    subprocess.run(command, input=text.encode(), cwd=folder, check=True)
    return (folder / "made.so").read_bytes()


def libc() -> bytes:
    """Return the libc that gcc links."""
    asked = [GCC, "-print-file-name=libc.so.6"]
    return Path(subprocess.check_output(asked, text=True).strip()).read_bytes()


def test_library_of_libc_alone_is_accepted(tmp_path):
    assert check_symbols(make(tmp_path, PLAIN)) == OLDEST_TAG


def test_symbols_are_read_as_readelf_reads_them(tmp_path):
    data = make(tmp_path, PLAIN + "int own(void) { return 1; }\n")
    symbols = {symbol.name: symbol for symbol in read_symbols(data)}
    assert symbols["own"].defined
    assert not symbols["malloc"].defined
    assert symbols["malloc"].library == "libc.so.6"
    assert glibc_version(symbols["malloc"].version)
    assert needed_libraries(data) == ["libc.so.6"]


@pytest.mark.parametrize("name", ["cudaFree", "cuInit", "PyErr_SetString", "c10_demangle"])
def test_22_symbol_of_no_system_library_is_refused(tmp_path, name):
    with pytest.raises(SymbolError, match=name):
        check_symbols(make(tmp_path, f"void {name}(void); void f(void) {{ {name}(); }}\n"))


def test_55_other_libraries_are_refused(tmp_path):
    make(tmp_path / "other", "int other(void) { return 1; }\n", "-Wl,-soname,libother.so.1")
    text = "int other(void); int f(void) { return other(); }\n"
    with pytest.raises(SymbolError, match=r"libother\.so\.1"):
        check_symbols(make(tmp_path, text, "other/made.so"))


def test_55_a_glibc_newer_than_promised_is_refused(tmp_path):
    if "pthread_key_create" not in moved_symbols(libc()):
        pytest.skip("this machine's glibc is older than 2.34: what it links loads anywhere")
    with pytest.raises(SymbolError, match=r"pthread_key_create needs glibc 2\.34"):
        check_symbols(make(tmp_path, THREADED, "-lpthread"))


def test_55_linked_against_the_stand_ins_the_same_code_needs_an_old_glibc(tmp_path):
    made = write_stand_ins(tmp_path, Path(GCC))
    data = make(tmp_path, THREADED, "-L.", "-lpthread", "-Wl,--as-needed")
    assert check_symbols(data) == OLDEST_TAG
    assert ("libpthread.so.0" in needed_libraries(data)) or not made


def test_55_what_is_linked_against_the_stand_ins_runs_here(tmp_path):
    write_stand_ins(tmp_path, Path(GCC))
    make(tmp_path, THREADED, "-L.", "-lpthread")
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).f())"
    command = [shutil.which("python3") or "python3", "-c", code, str(tmp_path / "made.so")]
    subprocess.run(command, check=True)


def test_moved_symbols_keep_a_version_that_old_systems_have():
    for name, version in moved_symbols(libc()).items():
        assert glibc_version(version) <= OLDEST_TAG, name


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:200], lambda d: d[: len(d) // 2]])
def test_what_is_no_complete_library_is_refused(tmp_path, damage):
    with pytest.raises(ElfError):
        check_symbols(damage(make(tmp_path, PLAIN)))
