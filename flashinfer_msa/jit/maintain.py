# SPDX-License-Identifier: Apache-2.0
"""Listing and removing cache entries, safe while other processes load and build.

An entry is renamed away before it is deleted, so nobody ever sees half of one; a process that
loaded it keeps its mapping. Lock files stay, and so does the work of living builders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..env import Settings
from .entries import DamagedError, Entry
from .roots import Root, candidate_roots, move_aside, remove_stale_staging, remove_tree


@dataclass
class Removal:
    """What a `clear` or `prune` did."""

    entries: int = 0
    bytes: int = 0
    staging: int = 0
    failures: list[str] = field(default_factory=list)


def tree_size(path: Path) -> int:
    """Return the bytes of the files in an entry."""
    try:
        return sum(file.stat().st_size for file in path.iterdir())
    except OSError:
        return 0


def all_entries(root: Root) -> Iterator[tuple[Path, Entry | None]]:
    """Yield the entries of a cache directory; a damaged one comes without its manifest."""
    for path in sorted(root.entries.glob("*/*")):
        try:
            yield path, Entry.read(root, path)
        except DamagedError:
            yield path, None


def _remove(root: Root, path: Path, removal: Removal) -> None:
    size = tree_size(path)
    try:
        aside = move_aside(root, path)
    except OSError as error:
        removal.failures.append(f"{path}: {error.strerror}")
        return
    if aside is not None:
        removal.entries += 1
        removal.bytes += size
        if not remove_tree(aside):
            removal.failures.append(f"{aside}: could not be deleted")


def remove_entries(settings: Settings, doomed: Callable[[Entry | None], bool]) -> Removal:
    """Remove the entries for which `doomed` holds, in all cache directories.

    Damaged entries are passed as None. What dead builders left behind goes too.
    """
    removal = Removal()
    for root in candidate_roots(settings):
        if not root.path.is_dir():
            continue
        for path, entry in all_entries(root):
            if doomed(entry):
                _remove(root, path, removal)
        try:
            removal.staging += remove_stale_staging(root, time.time())
        except OSError as error:
            removal.failures.append(f"{root.path}: {error.strerror}")
    return removal


def clear(settings: Settings) -> Removal:
    """Remove every entry and the logs of failed builds."""
    removal = remove_entries(settings, lambda entry: True)
    for root in candidate_roots(settings):
        for log in (root.path / "logs").glob("*.log"):
            try:
                log.unlink(missing_ok=True)
            except OSError as error:
                removal.failures.append(f"{log}: {error.strerror}")
    return removal
