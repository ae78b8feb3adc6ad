# SPDX-License-Identifier: Apache-2.0
"""Every kernel that is prebuilt, cached or wanted, as rows of a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..env import Settings
from .aot import Wheel, find_wheel, parse_codes
from .arch import resolve_target
from .entries import Entry
from .maintain import all_entries, tree_size
from .request import Request
from .roots import candidate_roots
from .spec import KernelSpec

Parse = Callable[[str], KernelSpec]


class Row(NamedTuple):
    """One kernel; `current` tells whether the present sources would use it."""

    name: str
    source: str
    arch: str
    current: bool = True
    bytes: int = 0
    age: float | None = None
    seconds: float | None = None
    path: str = ""


def is_current(entry: Entry, parse: Parse, settings: Settings) -> bool:
    """Tell whether the present sources, headers and flags would make this very entry's key."""
    try:
        spec = parse(entry.meta["name"])
        request = Request.of(spec, parse_codes(entry.meta["arch"]), settings)
        return bool(request.source_key == entry.meta["source_key"])
    except (ValueError, KeyError, TypeError):
        return False


def _cached_rows(settings: Settings, parse: Parse) -> Iterator[Row]:
    now = time.time()
    for root in candidate_roots(settings):
        for path, entry in all_entries(root):
            size = tree_size(path)
            if entry is None:
                yield Row(path.name, "damaged", path.parent.name, False, size, path=str(path))
                continue
            meta = entry.meta
            arch, age = "+".join(meta.get("arch", ())), now - meta["created"]
            current = is_current(entry, parse, settings)
            took = meta.get("seconds")
            yield Row(meta["name"], "cache", arch, current, size, age, took, str(path))


def _prebuilt_rows(wheel: Wheel | None) -> Iterator[Row]:
    artifacts = wheel.manifest.get("artifacts", {}) if wheel else {}
    for name, artifact in sorted(artifacts.items()):
        assert wheel is not None
        path = str(wheel.path / artifact["file"])
        arch, size = "+".join(artifact["arch"]), artifact["size"]
        yield Row(name, "aot", arch, not wheel.mismatch, size, path=path)


def _serves(row: Row, spec: KernelSpec, capability: tuple[int, int], settings: Settings) -> bool:
    if row.name != spec.name or not row.current:
        return False
    codes = row.arch.split("+")
    if row.source == "aot":
        return parse_codes(codes).serves(capability)
    return tuple(codes) == resolve_target(capability, settings.arch_list).codes


def inventory(
    settings: Settings,
    specs: Iterable[KernelSpec],
    parse: Parse,
    capabilities: Iterable[tuple[int, int]],
) -> list[Row]:
    """Return what exists, and for each GPU what is absent among `specs`."""
    rows = [*_prebuilt_rows(find_wheel()), *_cached_rows(settings, parse)]
    present = list(rows)
    wanted = [(spec, capability) for capability in capabilities for spec in specs]
    for spec, capability in wanted:
        if not any(_serves(row, spec, capability, settings) for row in present):
            codes = resolve_target(capability, settings.arch_list).codes
            rows.append(Row(spec.name, "absent", "+".join(codes)))
    return rows
