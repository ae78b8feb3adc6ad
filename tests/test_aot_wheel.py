# SPDX-License-Identifier: Apache-2.0
"""The wheel of prebuilt kernels: what is in it, and that anyone can build the same."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from aot_wheels import ROOT, SPECS, Built, build, build_once, copy_tree

from aot.artifacts import inspect_library
from aot.build_wheel import main
from aot.matrix import wheel_target
from aot.symbols import NEWEST_TAG, OLDEST_TAG, check_symbols, read_symbols
from flashinfer_msa import __version__

pytestmark = pytest.mark.nvcc
INFO = f"flashinfer_msa_aot-{__version__}.dist-info"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    return build_once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    return built.wheel


@pytest.fixture(scope="module")
def content(wheel) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def manifest(content) -> dict:
    return json.loads(content["flashinfer_msa_aot/manifest.json"])


@pytest.fixture(scope="module")
def libraries(content) -> dict[str, bytes]:
    return {name: data for name, data in content.items() if name.endswith(".so")}


def test_wheel_holds_the_kernels_and_next_to_nothing_else(content):
    own = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "LICENSE")}
    package = {f"flashinfer_msa_aot/{name}" for name in ("__init__.py", "manifest.json")}
    assert set(content) == own | package | {f"flashinfer_msa_aot/kernels/{s}.so" for s in SPECS}
    assert len(content["flashinfer_msa_aot/__init__.py"].splitlines()) <= 3


def test_progress_is_one_line_for_each_kernel(wheel):
    log = (wheel.parent / "log").read_text()
    for number in range(1, len(SPECS) + 1):
        assert re.search(
            rf"^\[{number}/{len(SPECS)}\] topk_select_\S+ +[\d.]+ s +\d+ KiB", log, re.M
        )
    assert re.search(r"MiB packed, [\d.]+ MiB installed", log)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in log


def test_53_record_is_exact(content):
    name = f"{INFO}/RECORD"
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(content[name].decode()))}
    assert rows.pop(name) == ["", ""]
    digests = {
        path: "sha256="
        + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        for path, data in content.items()
    }
    del digests[name]
    assert rows == {path: [digests[path], str(len(content[path]))] for path in digests}


def test_55_tag_promises_what_the_symbols_allow(wheel, content, libraries):
    floor = max(check_symbols(data) for data in libraries.values())
    assert OLDEST_TAG <= floor <= NEWEST_TAG
    tag = f"py3-none-manylinux_{floor[0]}_{floor[1]}_{os.uname().machine}"
    assert wheel.name == f"flashinfer_msa_aot-{__version__}-{tag}.whl"
    text = content[f"{INFO}/WHEEL"].decode()
    assert f"Tag: {tag}\n" in text
    assert "Root-Is-Purelib: false\n" in text


def test_56_no_library_knows_of_torch_python_or_cuda(libraries):
    for data in libraries.values():
        undefined = [s for s in read_symbols(data) if not s.defined]
        assert not [s.name for s in undefined if re.match(r"_?(Py|cu[A-Z]|cuda|_ZN)", s.name)]
        exported = {s.name for s in read_symbols(data) if s.defined}
        assert exported == {
            "flashinfer_msa_abi_version",
            "topk_select",
            "topk_select_prepare",
            "topk_select_error",
        }


def test_39_manifest_promises_what_is_inside(manifest, content):
    assert manifest["arch"] == ["sm80", "sm90", "ptx90"]
    assert list(manifest["artifacts"]) == sorted(SPECS)
    for artifact in manifest["artifacts"].values():
        data = content["flashinfer_msa_aot/" + artifact["file"]]
        assert artifact["sha256"] == hashlib.sha256(data).hexdigest()
        assert artifact["size"] == len(data)
        assert artifact["arch"] == manifest["arch"]
        inspect_library(data, wheel_target())
        with pytest.raises(ValueError, match="instead of"):
            inspect_library(data, wheel_target(["8.0"]))


def test_manifest_names_what_it_was_made_of_and_no_place(manifest, built):
    assert re.search(r"V\d+\.\d+\.\d+|nvcc \d+\.\d+", manifest["toolkit"])
    assert manifest["package_version"] == __version__
    assert len(manifest["source_hash"]) == 64
    assert manifest["machine"] == os.uname().machine
    assert str(built.folder) not in json.dumps(manifest)


def test_metadata_requires_nothing(content):
    text = content[f"{INFO}/METADATA"].decode()
    assert f"Name: flashinfer-msa-aot\nVersion: {__version__}\n" in text
    assert "Requires-Dist" not in text


def test_two_builds_in_two_places_are_the_same_to_the_byte(built, content, manifest):
    """But for what tells which kernels are inside: the second has one, to save time."""
    folder, tree, wheel = built
    elsewhere = copy_tree(tree, folder / "another place" / "tree")
    (folder / "tmp").mkdir()
    environment = {"TMPDIR": str(folder / "tmp"), "MAX_JOBS": "3"}
    second = build(elsewhere, folder / "dist2", SPECS[1:], **environment)
    assert second.name == wheel.name
    lists = {"flashinfer_msa_aot/manifest.json", f"{INFO}/RECORD"}
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(second) as two:
        assert {*one.namelist()} - {*two.namelist()} == {
            f"flashinfer_msa_aot/kernels/{SPECS[0]}.so"
        }
        for entry in two.infolist():
            same = one.getinfo(entry.filename)
            assert (entry.date_time, entry.external_attr, entry.compress_type) == (
                same.date_time, same.external_attr, same.compress_type
            )  # fmt: skip
            if entry.filename not in lists:
                assert two.read(entry) == content[entry.filename], entry.filename
        told = json.loads(two.read("flashinfer_msa_aot/manifest.json"))
    del manifest["artifacts"][SPECS[0]]
    assert told == manifest
    assert list((folder / "tmp").iterdir()) == []


def test_62_threads_that_build_at_once_all_find_ninja():
    """On older Pythons `sysconfig` fills its table in the open; ninja's package reads it."""
    code = """
import sys, threading
from flashinfer_msa.jit import compiler
sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(8), []
def find():
    barrier.wait()
    found.append(compiler.find_ninja())
threads = [threading.Thread(target=find) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
sys.exit(len(found) != 8)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_source_date_epoch_dates_every_file(monkeypatch, tmp_path):
    from aot.wheel import write_wheel

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    wheel = write_wheel(tmp_path, "n", "1", "py3-none-any", {"n/a": b"a"}, "Name: n\n")
    with zipfile.ZipFile(wheel) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH='soon'"):
        write_wheel(tmp_path, "n", "1", "py3-none-any", {}, "")
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--spec", "topk_select_k99_f32_bx_ex_token"], "topk must be"),
        (["--spec", "nonsense"], "nonsense"),
        (["--arch", "7.x"], "7.x"),
        (["--cuda-home", "/nonexistent"], "/nonexistent"),
    ],
)
def test_wrong_options_are_refused_by_name_and_make_nothing(tmp_path, capsys, words, message):
    assert main(["--out", str(tmp_path / "dist"), *words]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.whl"))
