# SPDX-License-Identifier: Apache-2.0
"""Names of kernels: those that a library holds, and those that a profiler saw."""

from __future__ import annotations

import re
from pathlib import Path

# The host part of a library registers its kernels by their mangled names. All are run_kernel<K>,
# where K is a template of a policy and of numbers.
_MANGLED = re.compile(
    rb"_ZN14flashinfer_msa10run_kernelI"
    rb"NS_\d+(?P<kernel>\w+?)INS_6PolicyI\w+?EEE(?P<numbers>(?:L[bi]n?\d+E)*)E"
)
_NUMBER = re.compile(r"L([bi])(n?\d+)E")
_DEMANGLED = re.compile(
    r"run_kernel<(?:\w+::)*(?P<kernel>\w+)<(?:\w+::)*Policy<[^<>]*>(?P<numbers>[^<>]*)>"
)


def names_in_library(path: Path) -> set[str]:
    """Return the kernels of a built library, such as ``RowsPerBlock<.., 1, 4, 8>``."""
    return {
        f"{match['kernel'].decode()}<..{_numbers(match['numbers'].decode())}>"
        for match in _MANGLED.finditer(path.read_bytes())
    }


def name_of_event(name: str) -> str | None:
    """Return the same short name of a kernel that a profiler saw, None if it is not ours."""
    match = _DEMANGLED.search(name)
    if match is None or "flashinfer_msa" not in name:
        return None
    numbers = match["numbers"]  # some demanglers write (bool)1 and (int)4
    for text, plain in (("(bool)1", "true"), ("(bool)0", "false"), ("(int)", "")):
        numbers = numbers.replace(text, plain)
    return f"{match['kernel']}<..{numbers.rstrip()}>"


def _numbers(mangled: str) -> str:
    values = []
    for kind, digits in _NUMBER.findall(mangled):
        value = digits.replace("n", "-")
        values.append({"0": "false", "1": "true"}[value] if kind == "b" else value)
    return "".join(f", {value}" for value in values)
