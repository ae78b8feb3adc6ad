# SPDX-License-Identifier: Apache-2.0
"""Just enough of ELF and of CUDA's fat binary to check a library before it is loaded.

A shared library that lost its tail kills the process (SIGBUS) instead of failing in `dlopen`, so
the layout is checked against the size of the file first.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHARED_OBJECT, _NO_BITS, _LOAD = 3, 8, 1
_FATBIN_MAGIC = 0xBA55ED50
_FATBIN_KINDS = {1: "ptx", 2: "sm"}


class ElfError(ValueError):
    """The bytes are no complete 64-bit shared library."""


def _check_range(data: bytes, offset: int, size: int, what: str) -> None:
    if offset + size > len(data):
        raise ElfError(f"{what} ends at byte {offset + size} of {len(data)}")


def read_sections(data: bytes) -> dict[str, bytes]:
    """Return the sections of a shared library that hold bytes, by name.

    Raises
    ------
    ElfError
        Not a 64-bit little-endian shared object, or a segment or section lies past the end.
    """
    if len(data) < _HEADER.size or data[:7] != b"\x7fELF\x02\x01\x01":
        raise ElfError("no 64-bit ELF header")
    head = _HEADER.unpack_from(data)
    kind, segments_at, sections_at = head[1], head[5], head[6]
    segments, section_size, sections, names_at = head[10], head[11], head[12], head[13]
    if kind != _SHARED_OBJECT or section_size != _SECTION.size or names_at >= sections:
        raise ElfError("not a shared library with a section table")
    _check_range(data, segments_at, segments * _SEGMENT.size, "the segment table")
    for index in range(segments):
        segment = _SEGMENT.unpack_from(data, segments_at + index * _SEGMENT.size)
        if segment[0] == _LOAD:
            _check_range(data, segment[2], segment[5], "a segment")
    _check_range(data, sections_at, sections * section_size, "the section table")
    table = [_SECTION.unpack_from(data, sections_at + i * section_size) for i in range(sections)]
    return _slice_sections(data, table, names_at)


def _slice_sections(data: bytes, table: list[tuple[int, ...]], names_at: int) -> dict[str, bytes]:
    names = data[table[names_at][4] :]
    sections = {}
    for name, kind, _, _, offset, size, *_ in table:
        if kind != _NO_BITS:
            _check_range(data, offset, size, "a section")
            label = names[name : names.find(b"\0", name)].decode("utf-8", "replace")
            sections[label] = data[offset : offset + size]
    return sections


def embedded_codes(sections: dict[str, bytes]) -> frozenset[str] | None:
    """Return which GPU code a library holds, such as `{"sm80", "ptx90"}`.

    None means that the fat binary has a layout this code does not know, which is no fault of the
    library. Feature suffixes are not recorded there: `sm_90a` reads as `sm90`.
    """
    section = sections.get(".nv_fatbin", b"")
    codes: set[str] = set()
    offset = 0
    while offset + 16 <= len(section):
        magic, version, header, size = struct.unpack_from("<IHHQ", section, offset)
        if magic == 0:  # alignment between two fat binaries
            offset += 8
            continue
        if magic != _FATBIN_MAGIC or version != 1:
            return None
        end = offset + header + size
        offset += header
        while offset + 32 <= min(end, len(section)):
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", section, offset)
            (number,) = struct.unpack_from("<I", section, offset + 28)
            if kind not in _FATBIN_KINDS or entry_header < 32:
                return None
            codes.add(f"{_FATBIN_KINDS[kind]}{number}")
            offset += entry_header + entry_size
        offset = end
    return frozenset(codes)
