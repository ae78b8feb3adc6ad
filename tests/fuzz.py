# SPDX-License-Identifier: Apache-2.0
"""Differential fuzzing of the op against the torch reference, bit for bit.

    python tests/fuzz.py --cases 20000 --seed 1 --device cuda
    python tests/fuzz.py --replay "seed=7 device=cuda heads=2 blocks=40 tokens=3 ..."

A case is one line of text: everything is drawn from it on the device, so that the line alone
brings a failure back. Cases run in batches and the host waits once a batch; a failure is run
again alone, shrunk, and printed as the line of the smallest case that still fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # a checkout needs no installation

import scores as draws
from dispatch import kernel_of
from fuzz_shapes import random_shape
from guards import Trial, assert_exact
from layouts import LAYOUTS
from scores import EDGE_EXTENTS, KINDS, SHARED_SPECS, TOKEN_EXTENTS

from flashinfer_msa.msa_ops import msa_topk_select
from flashinfer_msa.reference import msa_topk_select_reference as reference

Op = Callable[..., torch.Tensor]
BATCH = 64
MAX_SCORES = 1 << 21  # of a usual case; a crowd of rows may hold four times as many
PLAIN_KINDS = ("constant", "ascending", "quantised", "normal")
DTYPES = {name: dtype for dtype, name in draws.DTYPE_NAMES.items()}

# (spec, form of the extent): on a GPU each one is a build, hence the short list.
FORMS = [
    *((spec, "token") for spec in SHARED_SPECS),
    *((spec, "uniform") for spec in SHARED_SPECS[:3]),
]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call, small enough to be read; `str` and `parse` are each other's inverse."""

    seed: int
    device: str
    heads: int
    blocks: int
    tokens: int
    topk: int
    dtype: str
    begin: int
    end: int
    extent: str
    layout: str
    offset: int
    kinds: str

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in dataclasses.asdict(self).items())

    @classmethod
    def parse(cls, line: str) -> Case:
        words = dict(word.split("=", 1) for word in line.split())
        whole = {f.name for f in dataclasses.fields(cls) if f.type == "int"}
        return cls(**{k: int(v) if k in whole else v for k, v in words.items()})

    @property
    def kernel(self) -> str:
        """Which kernel serves it, as `dispatch.kernel_of` names them."""
        return kernel_of(self.topk, (self.heads, self.blocks, self.tokens), self.layout)

    def trial(self) -> Trial:
        gen = draws.generator(self.seed, self.device)
        shape, dtype = (self.heads, self.blocks, self.tokens), DTYPES[self.dtype]
        values = draws.draw(self.kinds, shape, dtype, gen)
        forced = self.begin + self.end
        extent = draws.draw_extent(self.extent, self.blocks, self.tokens, forced, gen)
        return Trial(values, self.topk, extent, self.begin, self.end, self.layout, self.offset)

    def fails(self, op: Op) -> torch.Tensor:
        """Run it and return, as one flag on the device, whether anything is wrong."""
        trial = self.trial()
        result = trial.run(op)
        topk, extent, begin, end = trial.arguments
        expected = reference(trial.scores.view, topk, extent, begin, end)
        return torch.stack([(result != expected).any(), *trial.faults().values()]).any()


def random_case(rng: random.Random, device: str) -> Case:
    spec, form = rng.choice(FORMS)
    heads, blocks, tokens = random_shape(rng, MAX_SCORES)
    return Case(
        seed=rng.randrange(2**31),
        device=device,
        heads=heads,
        blocks=blocks,
        tokens=tokens,
        topk=spec.topk,
        dtype=draws.DTYPE_NAMES[spec.dtype],
        begin=spec.begin,
        end=spec.end,
        extent=rng.choice([*TOKEN_EXTENTS, *EDGE_EXTENTS] if form == "token" else ["none", "int"]),
        layout=rng.choice([*LAYOUTS]),
        offset=rng.choice([0, 0, rng.randint(0, 9)]),
        kinds="+".join(rng.sample([*KINDS], rng.randint(1, 3))),
    )


def smaller(case: Case) -> Iterator[Case]:
    """Yield simpler cases that might fail as well, the boldest first."""
    kinds = case.kinds.split("+")
    if len(kinds) > 1:
        yield from (dataclasses.replace(case, kinds=kind) for kind in kinds)
    elif case.kinds not in PLAIN_KINDS:
        yield from (dataclasses.replace(case, kinds=kind) for kind in PLAIN_KINDS)
    plain = {"int": "none"} | {
        form: "long" for form in (*TOKEN_EXTENTS, *EDGE_EXTENTS) if form != "long"
    }
    if case.extent in plain:
        yield dataclasses.replace(case, extent=plain[case.extent])
    if case.layout != "s_contiguous":
        yield dataclasses.replace(case, layout="s_contiguous")
    for name, least in (("tokens", 1), ("blocks", 0), ("heads", 1), ("offset", 0)):
        now = getattr(case, name)
        for new in sorted({least, now // 8, now // 2, now - 1}):
            if least <= new < now:
                yield dataclasses.replace(case, **{name: new})


def fails_surely(case: Case, op: Op) -> bool:
    """Whether it fails; an exception is a failure too."""
    try:
        return bool(case.fails(op))
    except Exception:
        return True


def shrink(case: Case, op: Op, tries: int = 600) -> Case:
    """Return the smallest failing case found; other seeds get a chance at each size."""
    reseed = random.Random(case.seed)
    progress = True
    while progress:
        progress = False
        for candidate in smaller(case):
            for attempt in (candidate, *_reseeded(candidate, reseed, 3)):
                tries -= 1
                if tries < 0:
                    return case
                if fails_surely(attempt, op):
                    case, progress = attempt, True
                    break
            if progress:
                break
    return case


def _reseeded(case: Case, rng: random.Random, times: int) -> Iterator[Case]:
    for _ in range(times):
        yield dataclasses.replace(case, seed=rng.randrange(2**31))


def run_batch(cases: list[Case], op: Op) -> list[Case]:
    """Run them without waiting in between and return those that fail."""
    flags: list[torch.Tensor | bool] = []
    for case in cases:
        try:
            flags.append(case.fails(op))
        except Exception as error:
            print(f"fuzz: {type(error).__name__}: {error}")
            flags.append(True)
    on_device = [flag for flag in flags if isinstance(flag, torch.Tensor)]
    told = iter(torch.stack(on_device).tolist() if on_device else [])
    return [
        case
        for case, flag in zip(cases, flags, strict=True)
        if (next(told) if isinstance(flag, torch.Tensor) else flag)
    ]


def fuzz(
    cases: int,
    seed: int,
    device: str = "cpu",
    op: Op = msa_topk_select,
    say: Callable[[str], None] = print,
    stop_after: int = 5,
) -> list[Case]:
    """Run that many cases and return the shrunk failures, at most `stop_after` of them."""
    rng = random.Random(seed)
    failures: list[Case] = []
    done, began = 0, time.monotonic()
    while done < cases and len(failures) < stop_after:
        batch = [random_case(rng, device) for _ in range(min(BATCH, cases - done))]
        for case in run_batch(batch, op)[: stop_after - len(failures)]:
            failures.append(case)
            again = fails_surely(case, op)
            small = shrink(case, op) if again else case
            say(f'fuzz: FAILED{"" if again else " once, not again"}: --replay "{small}"')
            failures[-1] = small
        done += len(batch)
        if done % (BATCH * 32) == 0:
            say(f"fuzz: {done} cases, {len(failures)} failures, {time.monotonic() - began:.0f} s")
    say(f"fuzz: {done} cases, {len(failures)} failures, seed {seed}")
    return failures


def replay(line: str, op: Op = msa_topk_select) -> None:
    """Run one case and raise with the first bad row if it fails."""
    trial = Case.parse(line).trial()
    result = trial.run(op)
    topk, extent, begin, end = trial.arguments
    expected = reference(trial.scores.view, topk, extent, begin, end)
    assert_exact(result, expected, trial.scores.view, extent)
    broken = [what for what, flag in trial.faults().items() if flag]
    assert not broken, f"the call {' and '.join(broken)}"


def main() -> int:
    parser = argparse.ArgumentParser(description="compare the op with the reference")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--replay", metavar="LINE")
    options = parser.parse_args()
    if options.replay:
        replay(options.replay)
        print("fuzz: this case passes")
        return 0
    return 1 if fuzz(options.cases, options.seed, options.device) else 0


if __name__ == "__main__":
    sys.exit(main())
