# SPDX-License-Identifier: Apache-2.0
"""The very kernels, compiled for the CPU (tests/emulator), against the reference.

Each spec's calls go through every kernel and every branch of the dispatch. The emulated machine
finds races, divergent barriers, reads of what was never written or lies between the rows, and
double writes; AddressSanitizer and UndefinedBehaviorSanitizer find the rest. One file, though long:
its tests share what is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from emulator import POLICIES, Answers, Call, Emulator
from guards import LAYOUTS, assert_exact
from scores import KINDS, MIXTURE, TOKEN_EXTENTS, draw, draw_extent, generator

from flashinfer_msa.reference import msa_topk_select_reference
from flashinfer_msa.spec import SCORE_TYPES, TopKSelectSpec

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SPECS = (
    TopKSelectSpec(16, "f32", 0, 1, "token"),
    TopKSelectSpec(16, "f32", 0, 0, "uniform"),
    TopKSelectSpec(16, "f16", 1, 2, "token"),
    TopKSelectSpec(16, "bf16", 0, 0, "token"),
    TopKSelectSpec(1, "f32", 0, 0, "token"),
    TopKSelectSpec(5, "f32", 2, 3, "uniform"),  # nothing is left to choose
    TopKSelectSpec(32, "f16", 0, 1, "uniform"),
    TopKSelectSpec(64, "f32", 1, 2, "token"),
    TopKSelectSpec(16, "f32", None, None, "uniform"),
    TopKSelectSpec(32, "bf16", None, None, "token"),
    TopKSelectSpec(64, "f16", None, None, "token"),
)
ADDRESS_SPECS = (SPECS[2], SPECS[7], SPECS[9])
DISPATCH_SPECS = (SPECS[0], SPECS[6], SPECS[7])
PARTS = 3
NEAR_POWERS = sorted({2**j + d for j in range(14) for d in (-1, 0, 1)} - {0})
FEW_BLOCKS = (*NEAR_POWERS, 200, 5000, 16_385, 20_000)
MANY_BLOCKS = (*(n for n in NEAR_POWERS if n <= 513), 200, 300, 1100)
TOKENS = (33, 1, 31, 32, 64, 40)
# More tokens than kinds of scores, in a number that no kernel's thread blocks are filled by.
MIXED = 21
SOME_BLOCKS = (40, 129, 300, 500, 512, 600, 2048, 2049, 4200, 8200)
LANE_FAMILIES = ("many", "lean", "wide", "wider", "sixteen", "eight")
LANE_BLOCKS = (20, 128, 129, 300, 1100)
# Of equal scores above all others: lists just as long as fits, and one longer.
PLATEAUS = (1, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193,
            255, 256, 257, 319, 320, 321, 383, 384, 385)  # fmt: skip
PLATEAU_SHAPES = (
    ("few", 128), ("few", 512), ("few", 1000), ("some", 512), ("some", 700), ("some_many", 384),
    ("some_many", 700), ("some", 2200), ("some_many", 2200), ("slices", 2200), ("halves", 2200),
    ("halves_many", 2200), ("few2", 600), ("some4", 700), ("slices2", 2200), ("slices8", 2200),
    ("halves4", 2200),
    ("many", 180), ("lean", 300), ("wide", 300), ("wider", 300), ("sixteen", 300), ("eight", 300),
)  # fmt: skip
# (heads, blocks, tokens) at which the dispatch changes its mind, and tokens that lie together:
DISPATCH = (
    (1, 128, 63), (1, 128, 64), (1, 129, 64), (1, 257, 64), (1, 512, 64), (22, 500, 3),
    (1, 128, 768), (1, 129, 768), (1, 257, 768), (1, 385, 768), (1, 512, 767),
    (1, 513, 128), (1, 513, 127), (42, 600, 3), (1, 600, 512),
    (2, 2049, 64), (1, 2049, 512), (1, 8193, 128), (1, 8193, 5),
    (1, 128, 5631), (1, 128, 5632),
    (1, 4097, 23), (1, 4097, 24), (3, 4100, 9), (1, 8193, 1), (1, 16_385, 1), (1, 32_769, 1),
    (1, 4097, 120), (1, 4097, 121), (1, 4097, 193), (25, 4097, 8), (96, 4097, 4),
    (1, 8193, 64), (1, 8193, 65), (67, 8193, 1),
)  # fmt: skip
# Of the first spec alone; all but the first blocks are past the extent, to save time.
DISPATCH_MANY = (
    (1, 257, 7167), (1, 257, 7168), (1, 385, 3071), (1, 385, 3072), (1, 513, 1056), (1, 513, 1057),
    (133, 385, 24),
    (1, 8193, 120), (1, 8193, 121), (1, 8193, 241), (1, 8193, 529),
    (266, 385, 12), (400, 256, 18), (400, 257, 18), (700, 256, 11),
)  # fmt: skip


LAYOUT_PAIR = ("s_contiguous", "p_contiguous")
TOGETHER = tuple(name for name in LAYOUTS if name.startswith("s_"))  # tokens
TOGETHER_FAMILIES = ("some", "some_many", "slices", "halves", "halves_many")
# Thread blocks that share rows, and how long those are here. Shares of the shortest are empty.
SHARED = (
    ("few2", (140, 700, 17_000)), ("few4", (300, 2000)), ("few8", (150, 3000)),
    ("some4", (140, 600, 4200)), ("slices2", (700, 2200)), ("slices4", (140, 3000)),
    ("slices8", (300, 8200)), ("halves4", (140, 700, 4200)),
)  # fmt: skip


@cache
def emulator(spec: TopKSelectSpec, check: str = "races") -> Emulator:
    return Emulator(spec, check)


@pytest.fixture(scope="module", autouse=True)
def started():
    """Compile in the background, in the order in which the tests ask."""
    for spec in SPECS:
        emulator(spec)
    for spec in ADDRESS_SPECS:
        emulator(spec, "address")


def has_many_rows(spec: TopKSelectSpec) -> bool:
    return spec.topk <= 32


def together_families(spec: TopKSelectSpec) -> tuple[str, ...]:
    """Return the families for tokens that lie together; the last is for narrow selections."""
    return TOGETHER_FAMILIES[: 5 if spec.topk <= 16 else 4]


def shared(spec: TopKSelectSpec):
    """Return the families of shared rows, and how long those are here."""
    return SHARED if spec.topk <= 32 else SHARED[:-1]  # the last is for narrow selections


def make_call(spec: TopKSelectSpec, number: int, shape, family: str) -> Call:
    """Return call `number` of the spec: each choice goes round its list at a pace of its own."""

    def turn(options, pace):
        options = tuple(options)
        return options[number // pace % len(options)]

    gen = generator(number)
    topk, begin, end = spec.topk, spec.force_begin, spec.force_end
    if begin is None:
        topk = turn((spec.topk, 1, spec.topk - 3, 5), 1)
        begin, end = turn(((0, 0), (0, 1), (1, 0), (topk // 2, topk - topk // 2)), 1)
    kind = MIXTURE if number % 5 == 0 or shape[2] == MIXED else turn(KINDS, 1)
    values = draw(kind, shape, DTYPES[spec.dtype], gen)
    form = turn(TOKEN_EXTENTS, 1) if spec.extent == "token" else turn(("none", "int"), 1)
    extent = draw_extent(form, shape[1], shape[2], begin + end, gen)
    return Call(
        values, topk, extent, begin, end, offset=turn((0, 1, 2, 3), 1),
        layout=turn(TOGETHER if family.startswith(("some", "slices", "halves")) else LAYOUTS, 1),
        family=family, policy=turn(POLICIES, 1), seed=number + 1,
    )  # fmt: skip


def few_calls(spec: TopKSelectSpec) -> list[Call]:
    shapes = [
        (1 + number % 2, blocks, 1 if blocks > 2000 else (1, 9, 2, 16, 3)[number % 5])
        for number, blocks in enumerate(FEW_BLOCKS)
    ]
    calls = [make_call(spec, i, shape, "few") for i, shape in share(spec, shapes)]
    some = [*itertools.product(("some", "some_many"), SOME_BLOCKS), ("few", 120), ("few", 700)]
    some += itertools.product(together_families(spec)[2:], (100, 700, 4200))
    for i, (family, blocks) in share(spec, some):
        calls += [make_call(spec, 500 + 10 * i, (1, blocks, MIXED), family)]
        calls += [make_call(spec, 501 + 10 * i, (2, blocks, 5), family)]
    return [*calls, *plateau_calls(spec, ("few", *together_families(spec)))]


def shared_calls(spec: TopKSelectSpec) -> list[Call]:
    shapes = [(family, blocks) for family, lengths in shared(spec) for blocks in lengths]
    calls = []
    for i, (family, blocks) in share(spec, shapes):
        tokens = 2 if blocks > 10_000 else 5 if family.startswith("few") else MIXED
        calls += [make_call(spec, 5000 + 10 * i, (1, blocks, tokens), family)]
        calls += [make_call(spec, 5001 + 10 * i, (2, blocks, 3), family)]
    return [*calls, *plateau_calls(spec, [family for family, _ in shared(spec)])]


def many_calls(spec: TopKSelectSpec) -> list[Call]:
    if not has_many_rows(spec):
        return []
    shapes = [
        (1 + number % 2, blocks, TOKENS[number % len(TOKENS)])
        for number, blocks in enumerate(MANY_BLOCKS)
    ]
    calls = [make_call(spec, 1000 + i, shape, "many") for i, shape in share(spec, shapes)]
    lanes = itertools.product(LANE_FAMILIES, LANE_BLOCKS)
    for i, (family, blocks) in share(spec, lanes):
        calls += [make_call(spec, 1500 + i, (2, blocks, MIXED), family)]
    # Lines of memory that are aligned, and a block more or fewer than whole tiles of them.
    for layout, blocks in itertools.product(LAYOUT_PAIR, (95, 96, 97)):
        call = make_call(spec, 2000 + blocks, (1, blocks, 37), "many")
        layout = layout if blocks == 96 else layout.replace("contiguous", "padded")
        calls.append(replace(call, layout=layout, offset=0))
    return [*calls, *plateau_calls(spec, LANE_FAMILIES)]


def plateau_calls(spec: TopKSelectSpec, families) -> Iterator[Call]:
    """Yield calls whose rows have so many equal scores above all others, here and there."""
    shapes = [shape for shape in PLATEAU_SHAPES if shape[0] in families]
    for number, (family, blocks) in share(spec, shapes):
        call = make_call(spec, 4000 + number, (1, blocks, len(PLATEAUS)), family)
        order = torch.rand(call.values.shape, generator=generator(number)).argsort(1).argsort(1)
        high = order < torch.tensor(PLATEAUS)
        values = high.to(call.values.dtype)
        extent = None if spec.extent == "uniform" else torch.full((len(PLATEAUS),), blocks).int()
        yield replace(call, values=values, extent=extent, layout="s_padded")


def share(spec: TopKSelectSpec, shapes):
    """Number the shapes; one spec takes all of them, of the others each its part."""
    parts = 1 if spec == SPECS[0] else PARTS
    return list(enumerate(shapes))[SPECS.index(spec) % parts :: parts]


def dispatch_calls(spec: TopKSelectSpec) -> Iterator[Call]:
    """Calls on both sides of the limits between kernels, in either order of memory."""
    shapes = [(1, blocks, 1) for blocks in NEAR_POWERS if blocks in range(60, 8200)]
    calls = [(shape, LAYOUT_PAIR[number % 2]) for number, shape in enumerate(shapes)]
    calls += [(shape, "s_contiguous") for shape in DISPATCH]
    if has_many_rows(spec):
        calls += [((2, 20, 2048), "p_contiguous"), ((1, 20, 4095), "p_padded")]
        calls += [((133, 20, 31), "p_padded")]
        calls += [((1, 1030, tokens), "p_contiguous") for tokens in (1792, 2113)]
        calls += [((820, 20, 5), "p_contiguous"), ((266, 20, 17), "p_contiguous")]
    for number, (shape, layout) in enumerate(calls):
        call = make_call(spec, 3000 + number, shape, "dispatch")
        yield replace(call, layout=layout, offset=0 if number % 3 else call.offset)


def check(spec: TopKSelectSpec, calls: list[Call], check: str = "races") -> Answers:
    answers = emulator(spec, check).run_side_by_side(calls)
    for call, output in zip(calls, answers.outputs, strict=True):
        expected = msa_topk_select_reference(
            call.scores, call.topk, call.extent, call.begin, call.end
        )
        try:
            assert_exact(output, expected, call.scores, call.extent)
        except AssertionError as error:
            raise AssertionError(f"{call}\n{error}") from None
    return answers


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_few_rows(spec):
    check(spec, few_calls(spec))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_shared_rows(spec):
    check(spec, shared_calls(spec))


@pytest.mark.parametrize("spec", [*filter(has_many_rows, SPECS)], ids=lambda spec: spec.name)
def test_many_rows(spec):
    check(spec, many_calls(spec))


@pytest.mark.parametrize("spec", DISPATCH_SPECS, ids=lambda spec: spec.name)
def test_the_dispatch_reaches_every_kernel(spec):
    calls = list(dispatch_calls(spec))
    rare = ("RowPerLane<.., false", "RowsInSlices<..")  # that take many rows to reach
    if spec == DISPATCH_SPECS[0]:
        rare = ()
        for number, shape in enumerate(DISPATCH_MANY):
            call = make_call(spec, 3100 + number, shape, "dispatch")
            extent = draw_extent("random", 50, shape[2], 1, seed=number)
            calls.append(replace(call, extent=extent, layout="s_padded"))
    answers = check(spec, calls)
    launched = {name for names in answers.launched for name in names}
    prepared = set(answers.prepared)
    assert launched <= prepared
    assert all(name.startswith(rare) for name in prepared - launched)
    assert all(len(names) == 1 for names in answers.launched)


def test_every_call_is_served_where_the_gpu_has_no_features():
    """There no launch may start early, and no thread blocks share rows."""
    calls = [replace(call, features=0) for call in dispatch_calls(DISPATCH_SPECS[0])]
    assert all(len(names) == 1 for names in check(DISPATCH_SPECS[0], calls).launched)


@pytest.mark.parametrize("spec", ADDRESS_SPECS, ids=lambda spec: spec.name)
def test_sanitizers_find_nothing(spec):
    check(spec, few_calls(spec) + shared_calls(spec) + many_calls(spec), "address")


@pytest.mark.parametrize("kind", ["normal", "quantised", "some_nan", "ascending", "constant"])
def test_the_order_of_threads_does_not_matter(kind):
    spec = SPECS[0]
    shapes = (
        ("few", (1, 1500, 1)), ("few", (2, 90, 2)), ("few4", (1, 900, 2)), ("some4", (1, 600, 5)),
        ("slices2", (1, 900, 9)), ("many", (2, 300, 33)),
    )  # fmt: skip
    for family, shape in shapes:
        values = draw(kind, shape)
        extent = torch.full((shape[2],), shape[1], dtype=torch.int32)
        turns = [("forward", 0), ("backward", 0), *(("random", seed) for seed in range(1, 7))]
        calls = [
            Call(values, 16, extent, 0, 1, family=family, policy=policy, seed=seed)
            for policy, seed in turns
        ]
        check(spec, calls)


@pytest.mark.parametrize("family", ["few", "few4", "many"])
def test_a_row_alone_and_in_company(family):
    """What a row gets depends on nothing but the row."""
    spec, shape = SPECS[0], (3, 150, 35)
    values = draw(MIXTURE, shape, seed=3)
    extent = draw_extent("random", shape[1], shape[2], 1, seed=4)
    rows = [(0, 0), (1, 31), (2, 34), (0, 32)]
    alone = [
        Call(values[h : h + 1, :, s : s + 1], 16, extent[s : s + 1], 0, 1, family=family)
        for h, s in rows
    ]
    together, *outputs = check(
        spec, [Call(values, 16, extent, 0, 1, family=family), *alone]
    ).outputs
    for (h, s), output in zip(rows, outputs, strict=True):
        assert torch.equal(output[0, 0], together[s, h])


def test_the_specs_cover_what_a_build_may_be():
    assert {spec.dtype for spec in SPECS} == set(SCORE_TYPES)
    assert {spec.topk for spec in SPECS} >= {1, 5, 16, 32, 64}
