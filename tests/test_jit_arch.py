# SPDX-License-Identifier: Apache-2.0
"""One grammar of arch lists, and which entry serves a GPU."""

import logging

import pytest

from flashinfer_msa.jit import Target, log, parse_arch_list, resolve_target

SPELLINGS = {
    "9.0a": "sm90a",
    "8.0+PTX": "sm80_ptx80",
    "8.0+ptx": "sm80_ptx80",
    "8.0;9.0": "sm80_sm90",
    "9.0 8.0": "sm80_sm90",
    " 8.0  9.0 ": "sm80_sm90",
    "8.0,9.0;": "sm80_sm90",
    "sm_90": "sm90",
    "90": "sm90",
    "90a": "sm90a",
    "sm_90a": "sm90a",
    "10.0f": "sm100f",
    "120": "sm120",
    "compute_90": "ptx90",
    "Hopper": "sm90",
    "hopper+PTX": "sm90_ptx90",
    "Ampere": "sm80_sm86",
    "8.0;8.0": "sm80",
    "8.0+PTX;9.0+PTX": "sm80_sm90_ptx90",
    "8.0;compute_90": "sm80_ptx90",
}


@pytest.mark.parametrize(("text", "name"), SPELLINGS.items())
def test_34_spelling_is_understood(text, name):
    assert Target.parse(text).name == name


@pytest.mark.parametrize("text", ["", " ", ";", ", ;"])
def test_34_empty_list_is_empty(text):
    assert parse_arch_list(text) == ()


BAD = ["9", "nine", "9.0b", "sm90", "8.0+SASS", "+PTX", "9.0.0", "all", "native", "1.0", "99.9"]


@pytest.mark.parametrize("entry", [*BAD, "-9.0", "9.\u0660"])
def test_34_bad_entry_is_rejected_by_name(entry):
    with pytest.raises(ValueError, match="is not an architecture") as error:
        parse_arch_list(f"8.0;{entry}")
    assert repr(entry) in str(error.value)


CHOICES = [
    ("", (9, 0), "sm90"),
    ("", (8, 6), "sm86"),
    ("8.0+PTX", (9, 0), "sm80_ptx80"),
    ("8.0", (8, 6), "sm80"),
    ("8.0", (8, 9), "sm80"),
    ("8.0;8.6;9.0", (8, 9), "sm86"),
    ("9.0;8.0+PTX", (9, 0), "sm90"),
    ("8.0+PTX;8.6+PTX", (9, 0), "sm86_ptx86"),
    ("9.0a;9.0", (9, 0), "sm90a"),
    ("9.0a;8.0+PTX", (10, 0), "sm80_ptx80"),
    ("10.0f", (10, 3), "sm100f"),
    ("compute_80", (8, 0), "ptx80"),
]


@pytest.mark.parametrize(("text", "capability", "name"), CHOICES)
def test_38_best_entry_for_the_gpu_is_taken(text, capability, name):
    assert resolve_target(capability, text).name == name


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        ("8.0", (9, 0)),
        ("9.0+PTX", (8, 0)),
        ("8.6", (8, 0)),
        ("9.0a+PTX", (10, 0)),
        ("7.0+PTX", (9, 0)),
    ],
)
def test_38_list_that_excludes_the_gpu_is_an_error_that_names_both(text, capability):
    with pytest.raises(ValueError, match=r"has no entry that serves this GPU") as error:
        resolve_target(capability, text)
    assert repr(text) in str(error.value)
    assert f"add {capability[0]}.{capability[1]}" in str(error.value)


def test_33_too_old_entry_is_skipped_with_one_warning(caplog, monkeypatch):
    monkeypatch.setattr(log, "_warned", set())
    with caplog.at_level(logging.WARNING, "flashinfer_msa"):
        for _ in range(2):
            assert resolve_target((9, 0), "7.0;9.0").name == "sm90"
    assert [record.getMessage() for record in caplog.records] == [
        "FLASHINFER_MSA_ARCH_LIST: 7.0 is skipped; the oldest supported GPU is 8.0"
    ]


def test_target_is_a_value():
    assert Target(sass=((9, 0), (8, 0)), ptx=(9, 0)) == Target.parse("8.0;9.0+PTX")
    assert hash(Target(((8, 0),))) == hash(Target(((8, 0), (8, 0))))
    with pytest.raises(ValueError, match="at least one"):
        Target()


def test_flags_of_a_target_name_exactly_its_parts():
    assert Target(((8, 0), (9, 0)), (9, 0)).nvcc_flags() == (
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    )
