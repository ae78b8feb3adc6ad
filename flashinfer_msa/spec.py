# SPDX-License-Identifier: Apache-2.0
"""One frozen value names a specialisation of the selector and renders its CUDA sources."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flashinfer_msa.env import template_dir

MAX_TOPK = 64
GENERIC_TOPK = (16, 32, MAX_TOPK)
ABI_VERSION = 2
SCORE_TYPES = {"f32": "float", "f16": "__half", "bf16": "__nv_bfloat16"}
EXTENTS = ("uniform", "token")  # none or one int for all rows; one int32 for each token
_TEMPLATES = tuple(
    f"topk_select{part}.cu.jinja" for part in ("", "_few_rows", "_some_rows", "_many_rows")
)
_NAME = re.compile(r"topk_select_k(\d+)_(f32|f16|bf16)_b(\d+|x)_e(\d+|x)_(uniform|token)")


@dataclass(frozen=True)
class TopKSelectSpec:
    """What a build of the selector is specialised on.

    Parameters
    ----------
    topk : int
        Blocks a row, 1 to 64. In the generic build, the most that a call may ask for.
    dtype : str
        Type of the scores: ``"f32"``, ``"f16"`` or ``"bf16"``.
    force_begin, force_end : int or None
        Forced blocks at either end. ``None`` for both is the generic build: it leaves these
        counts, and how many blocks to choose, to run time.
    extent : str
        ``"uniform"``: one extent for all rows; ``"token"``: an int32 for each token.

    Raises
    ------
    ValueError
        If the values do not make a legal call.
    """

    topk: int
    dtype: str
    force_begin: int | None = None
    force_end: int | None = None
    extent: str = "token"

    def __post_init__(self) -> None:
        if not 1 <= self.topk <= MAX_TOPK:
            raise ValueError(f"topk must be in 1..{MAX_TOPK}, got {self.topk}")
        if self.dtype not in SCORE_TYPES:
            raise ValueError(f"dtype must be one of {', '.join(SCORE_TYPES)}, got {self.dtype!r}")
        if self.extent not in EXTENTS:
            raise ValueError(f"extent must be one of {', '.join(EXTENTS)}, got {self.extent!r}")
        if (self.force_begin is None) != (self.force_end is None):
            raise ValueError("force_begin and force_end are both counts, or both None")
        begin, end = self.force_begin or 0, self.force_end or 0
        if begin < 0 or end < 0 or begin + end > self.topk:
            raise ValueError(
                f"force_begin and force_end must be >= 0 with a sum <= topk = {self.topk}, "
                f"got {begin} and {end}"
            )

    @property
    def abi(self) -> int:
        """Version of the C functions that the built library must report."""
        return ABI_VERSION

    @cached_property
    def name(self) -> str:
        """Readable, unique, safe in a file name."""
        begin = "x" if self.force_begin is None else self.force_begin
        end = "x" if self.force_end is None else self.force_end
        return f"topk_select_k{self.topk}_{self.dtype}_b{begin}_e{end}_{self.extent}"

    @classmethod
    def parse(cls, name: str) -> TopKSelectSpec:
        """Return the spec of that `name`; raise ValueError if it is none."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"not the name of a spec: {name!r} (as {cls(16, 'f32').name!r})")
        topk, dtype, begin, end, extent = match.groups()
        force_begin = None if begin == "x" else int(begin)
        force_end = None if end == "x" else int(end)
        return cls(int(topk), dtype, force_begin, force_end, extent)

    def generic(self) -> TopKSelectSpec:
        """Return the generic build that serves the same calls, and others."""
        topk = next(most for most in GENERIC_TOPK if self.topk <= most)
        return TopKSelectSpec(topk, self.dtype, None, None, self.extent)

    def sources(self) -> dict[str, str]:
        """Return the rendered translation units: file name to text."""
        environment = _environment()
        return {
            name.removesuffix(".jinja"): environment.get_template(name).render(self._variables())
            for name in _TEMPLATES
        }

    def inputs(self) -> dict[str, str]:
        """Return what `sources` are made of: enough for a cache key, and no rendering."""
        texts = {name: (template_dir() / name).read_text("utf-8") for name in _TEMPLATES}
        return texts | {"variables": json.dumps(self._variables(), sort_keys=True)}

    def _variables(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "abi": self.abi,
            "topk": self.topk,
            "score_type": SCORE_TYPES[self.dtype],
            "force_begin": -1 if self.force_begin is None else self.force_begin,
            "force_end": -1 if self.force_end is None else self.force_end,
            "extent_per_token": "true" if self.extent == "token" else "false",
        }


def common_specs() -> tuple[TopKSelectSpec, ...]:
    """Return the specialisations that MiniMax-M3 uses, then the generic ones for every call."""
    forced = ((0, 0), (0, 1), (1, 2))
    special = [
        TopKSelectSpec(16, dtype, begin, end, extent)
        for dtype, (begin, end), extent in itertools.product(SCORE_TYPES, forced, EXTENTS)
    ]
    generic = [
        TopKSelectSpec(topk, dtype, None, None, extent)
        for topk, dtype, extent in itertools.product(GENERIC_TOPK, SCORE_TYPES, EXTENTS)
    ]
    return (*special, *generic)


def _environment() -> Any:
    import jinja2  # here, not above: a warm process never renders

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_dir()),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
