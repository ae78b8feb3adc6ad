# SPDX-License-Identifier: Apache-2.0
"""What a shared library asks of the system that loads it, read from the file itself."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from flashinfer_msa.jit.elf import read_sections

Version = tuple[int, ...]
OLDEST_TAG: Version = (2, 17)  # pip knows no older tag of this form
NEWEST_TAG: Version = (2, 28)  # what the wheel promises at most
# The system's own libraries. libcudart, libcuda, libtorch and libstdc++ are not among them.
LIBRARIES = frozenset(
    {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"}
    | {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
)
# Compilers refer to these weakly, and do without them.
_OPTIONAL = frozenset({"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"})
_OPTIONAL |= {"__gmon_start__", "__cxa_finalize"}
_SYMBOL = struct.Struct("<IBBHQQ")
_NEEDED, _WEAK, _HIDDEN = 1, 2, 0x8000


class SymbolError(ValueError):
    """The library needs something that not every promised system has."""


class Symbol(NamedTuple):
    """One entry of the dynamic symbol table."""

    name: str
    version: str
    library: str
    defined: bool
    weak: bool
    default: bool


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


def _needed_versions(sections: dict[str, bytes]) -> dict[int, tuple[str, str]]:
    """Return index -> (version, library) of what other libraries must provide."""
    data, strings = sections.get(".gnu.version_r", b""), sections[".dynstr"]
    found, at = {}, 0
    while data:
        _, count, file, first, step = struct.unpack_from("<HHIII", data, at)
        inner = at + first
        for _ in range(count):
            _, _, index, name, inner_step = struct.unpack_from("<IHHII", data, inner)
            found[index] = (_text(strings, name), _text(strings, file))
            inner += inner_step
        if not step:
            break
        at += step
    return found


def _own_versions(sections: dict[str, bytes]) -> dict[int, tuple[str, str]]:
    """Return index -> (version, "") of what the library itself defines."""
    data, strings = sections.get(".gnu.version_d", b""), sections[".dynstr"]
    found, at = {}, 0
    while data:
        _, _, index, _, _, first, step = struct.unpack_from("<HHHHIII", data, at)
        (name,) = struct.unpack_from("<I", data, at + first)
        found[index] = (_text(strings, name), "")
        if not step:
            break
        at += step
    return found


def read_symbols(data: bytes) -> Iterator[Symbol]:
    """Yield the dynamic symbols of a shared library with their versions."""
    sections = read_sections(data)
    versions = _own_versions(sections) | _needed_versions(sections)
    table, indices = sections[".dynsym"], sections.get(".gnu.version", b"")
    for number in range(1, len(table) // _SYMBOL.size):
        name, info, _, section, _, _ = _SYMBOL.unpack_from(table, number * _SYMBOL.size)
        index = struct.unpack_from("<H", indices, 2 * number)[0] if indices else 0
        version, library = versions.get(index & ~_HIDDEN, ("", ""))
        yield Symbol(
            _text(sections[".dynstr"], name),
            version,
            library,
            defined=section != 0,
            weak=info >> 4 == _WEAK,
            default=not index & _HIDDEN,
        )


def needed_libraries(data: bytes) -> list[str]:
    """Return the libraries that the loader opens together with this one."""
    sections = read_sections(data)
    entries = struct.iter_unpack("<qQ", sections[".dynamic"])
    return [_text(sections[".dynstr"], value) for tag, value in entries if tag == _NEEDED]


def glibc_version(version: str) -> Version | None:
    """Return `GLIBC_2.17` as numbers; None for the version of anything else."""
    match = re.fullmatch(r"GLIBC_(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else None


def check_symbols(data: bytes) -> Version:
    """Return the oldest glibc that can load a library, as the symbols' versions tell.

    Raises
    ------
    SymbolError
        It needs another library than the system's own, a symbol of no known library (torch's,
        Python's, CUDA's), or a glibc newer than the wheel may promise.
    """
    alien = sorted(set(needed_libraries(data)) - LIBRARIES)
    if alien:
        raise SymbolError(f"it needs {', '.join(alien)}")
    undefined = [symbol for symbol in read_symbols(data) if not symbol.defined]
    # A version binds a symbol to the library that must have it; one without could be anyone's.
    loose = [s.name for s in undefined if s.library not in LIBRARIES]
    loose = [name for name in loose if name not in _OPTIONAL]
    if loose:
        raise SymbolError(f"it has undefined symbols of no system library: {', '.join(loose)}")
    floor, by = OLDEST_TAG, ""
    for symbol in undefined:
        version = glibc_version(symbol.version)
        if symbol.version.startswith("GLIBC_") and version is None:
            raise SymbolError(f"{symbol.name} needs {symbol.version}")
        if version is not None and version > floor:
            floor, by = version, symbol.name
    if floor > NEWEST_TAG:
        raise SymbolError(f"{by} needs glibc {'.'.join(map(str, floor))}")
    return floor
