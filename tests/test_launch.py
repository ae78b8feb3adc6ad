# SPDX-License-Identifier: Apache-2.0
"""What goes to a library and back, with one of Python's in its place: needs no GPU."""

import re
import struct

import dispatch
import pytest
import torch

from flashinfer_msa import jit, launch
from flashinfer_msa.env import include_dir

LETTERS = {"int32_t": "i", "int64_t": "q", "cudaStream_t": "P"}  # and pointers: P
STREAM, GPU = 0x1234_5678_9ABC, 0
OTHER = 1 << 4  # a bit that Python does not know
FOUND = launch.DEPENDENT_LAUNCH | OTHER


class Library:
    """Takes the part of a kernel's library; keeps what it was asked."""

    def __init__(self, features: int = FOUND) -> None:
        self.calls: list[bytes] = []

        def prepare(features_out) -> int:
            features_out._obj.value = features
            return 0

        def select(call: bytes) -> int:
            self.calls.append(call)
            return 0

        self.topk_select_prepare, self.topk_select = prepare, select
        self.topk_select_error = lambda error: b"never"


def members_of_call() -> dict[str, str]:
    """Return the members of the C struct and their letters, in order."""
    text = include_dir().joinpath("flashinfer_msa", "topk_select.cuh").read_text()
    body = re.search(r"struct Call \{(.*?)\};", text, re.S)[1]
    members = {}
    for line in re.sub("//.*", "", body).split(";"):
        if line.strip():
            kind, names = re.fullmatch(r"\s*(?:const )?(\w+\*?) (.*)", line, re.S).groups()
            letter = "P" if kind.endswith("*") else LETTERS[kind]
            members.update((name.strip(), letter) for name in names.split(","))
    return members


@pytest.fixture
def library(monkeypatch) -> Library:
    """Answer for the one GPU of a machine that has none."""
    library = Library()
    monkeypatch.setattr(launch, "_ready", {})
    monkeypatch.setattr(jit, "load", lambda spec, capability: library)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: GPU)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: GPU, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return library


def call(scores, topk, extent, output, begin, end):
    launch.launch(scores, scores.shape, topk, extent, output, begin, end)


@pytest.mark.parametrize("form", ["tokens", "int", "none"])
def test_a_call_arrives_as_the_kernels_read_it(library, form):
    heads, blocks, tokens, topk = 2, 30, 7, 11
    scores = torch.zeros(heads, blocks + 1, tokens + 2)[:, :blocks, :tokens]
    output = torch.zeros(tokens, heads, topk, dtype=torch.int32)
    extents = torch.zeros(tokens, dtype=torch.int32)
    extent = {"tokens": extents, "int": 9, "none": None}[form]
    call(scores, topk, extent, output, 3, 1)
    members = members_of_call()
    got = dict(
        zip(members, struct.unpack("@" + "".join(members.values()), *library.calls), strict=True)
    )
    assert got == {
        "scores": scores.data_ptr(),
        "extents": extents.data_ptr() if form == "tokens" else 0,
        "output": output.data_ptr(),
        "stream": STREAM,
        "head_stride": scores.stride(0),
        "block_stride": scores.stride(1),
        "token_stride": scores.stride(2),
        "heads": heads,
        "blocks": blocks,
        "tokens": tokens,
        "extent": 9 if form == "int" else blocks,
        "topk": topk,
        "force_begin": 3,
        "force_end": 1,
        "features": FOUND,
    }


def test_the_bits_of_features_are_those_of_the_kernels():
    text = include_dir().joinpath("flashinfer_msa", "row.cuh").read_text()
    body = re.search(r"enum Feature : int32_t \{(.*?)\};", text, re.S)[1]
    bits = dict(re.findall(r"(k\w+) = (\d+)", body))
    assert bits == {
        "kDependentLaunch": str(launch.DEPENDENT_LAUNCH),
        "kClusters": str(dispatch.CLUSTERS),
    }


@pytest.mark.parametrize(
    ("word", "features"), [("", FOUND), ("1", FOUND), ("0", OTHER), ("off", OTHER)]
)
def test_the_environment_turns_dependent_launch_off_and_nothing_else(
    library, monkeypatch, word, features
):
    monkeypatch.setenv("FLASHINFER_MSA_PDL", word)
    scores, output = torch.zeros(1, 3, 1), torch.zeros(1, 1, 2, dtype=torch.int32)
    call(scores, 2, None, output, 0, 0)
    monkeypatch.setenv("FLASHINFER_MSA_PDL", "1" if features == OTHER else "0")
    call(scores, 2, None, output, 0, 0)  # what is ready stays as it is
    assert [struct.unpack("@4P3q8i", packed)[-1] for packed in library.calls] == [features] * 2


def test_a_kind_of_call_is_readied_once(library, monkeypatch):
    loads = []
    monkeypatch.setattr(jit, "load", lambda spec, capability: loads.append(spec) or library)
    scores, output = torch.zeros(1, 3, 2), torch.zeros(2, 1, 2, dtype=torch.int32)
    for extent in (None, 2, None, torch.ones(2, dtype=torch.int32), 3):
        call(scores, 2, extent, output, 0, 0)
    assert [spec.extent for spec in loads] == ["uniform", "token"]
    assert len(library.calls) == 5
