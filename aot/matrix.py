# SPDX-License-Identifier: Apache-2.0
"""The one list of what is prebuilt: every common specialisation, for every promised GPU."""

from __future__ import annotations

from collections.abc import Iterable

from flashinfer_msa.jit import Arch, Target, parse_arch_list
from flashinfer_msa.spec import TopKSelectSpec, common_specs

# 8.6 and 8.9 run the code of 8.0; whatever is newer than 9.0 compiles the PTX.
ARCHS = ("8.0", "9.0")


def matrix() -> tuple[TopKSelectSpec, ...]:
    """Return every kernel of the wheel.

    The exact specialisations are there for speed. The generic ones alone serve every legal call,
    which is what a machine without a compiler relies on.
    """
    return common_specs()


def served_by(spec: TopKSelectSpec, prebuilt: Iterable[TopKSelectSpec]) -> TopKSelectSpec | None:
    """Return which of the prebuilt kernels answers the calls of `spec`, or None."""
    specs = set(prebuilt)
    return next((one for one in (spec, spec.generic()) if one in specs), None)


def wheel_target(archs: Iterable[str] = ARCHS, ptx: str = "newest") -> Target:
    """Return what each library holds.

    Parameters
    ----------
    archs : iterable of str
        Machine code, in the spellings of FLASHINFER_MSA_ARCH_LIST.
    ptx : str
        ``"newest"``: portable code of the newest of `archs`, which every later GPU can compile;
        ``"none"``; or an architecture.

    Raises
    ------
    ValueError
        An entry is malformed, or there is none.
    """
    entries = parse_arch_list(" ".join(archs))
    sass = {entry.arch for entry in entries if entry.sass}
    portable = {entry.arch for entry in entries if entry.ptx}
    if ptx == "newest":
        portable |= {arch for arch in sass if not arch.suffix}
    elif ptx != "none":
        portable = {entry.arch for entry in parse_arch_list(ptx)}
        if len(portable) != 1:
            raise ValueError(f"--ptx {ptx!r} is not newest, none or one architecture")
    newest: Arch | None = max(portable) if portable else None
    return Target(tuple(sorted(sass)), newest)
