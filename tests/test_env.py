# SPDX-License-Identifier: Apache-2.0
"""The environment is read in one place, strictly."""

import re
from pathlib import Path

import pytest

from flashinfer_msa import env
from flashinfer_msa.env import Settings

BOOLEANS = ("FLASHINFER_MSA_DISABLE_JIT", "FLASHINFER_MSA_VERBOSE")
ROOT = Path(__file__).parents[1]


def boolean(name: str, text: str) -> bool:
    settings = Settings.read({name: text})
    return {BOOLEANS[0]: settings.disable_jit, BOOLEANS[1]: settings.verbose}[name]


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("text", ["", "0", "false", "off", "no", "False", " OFF "])
def test_58_words_for_no_are_false(name, text):
    assert boolean(name, text) is False


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("text", ["1", "true", "on", "yes", "TRUE"])
def test_58_words_for_yes_are_true(name, text):
    assert boolean(name, text) is True


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("text", ["2", "maybe", "-1", "y"])
def test_58_other_words_are_an_error_that_names_the_variable(name, text):
    with pytest.raises(ValueError, match=f"{name}='{text}'"):
        Settings.read({name: text})


@pytest.mark.parametrize(("text", "value"), [("", True), ("1", True), ("0", False), ("Off", False)])
def test_dependent_launch_is_on_unless_turned_off(text, value):
    assert Settings.read({"FLASHINFER_MSA_PDL": text}).dependent_launch is value


def test_a_bad_word_for_dependent_launch_is_an_error_that_names_the_variable():
    with pytest.raises(ValueError, match="FLASHINFER_MSA_PDL='perhaps'"):
        Settings.read({"FLASHINFER_MSA_PDL": "perhaps"})


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_bad_lock_timeout_is_an_error_that_names_the_variable(text):
    with pytest.raises(ValueError, match="FLASHINFER_MSA_LOCK_TIMEOUT"):
        Settings.read({"FLASHINFER_MSA_LOCK_TIMEOUT": text})


def test_unbalanced_quote_in_flags_is_an_error_that_names_the_variable():
    with pytest.raises(ValueError, match="FLASHINFER_MSA_EXTRA_NVCC_FLAGS"):
        Settings.read({"FLASHINFER_MSA_EXTRA_NVCC_FLAGS": "-DX='1"})


def test_flags_are_split_as_a_shell_would():
    settings = Settings.read({"FLASHINFER_MSA_EXTRA_NVCC_FLAGS": "-lineinfo '-DX=a b'"})
    assert settings.extra_nvcc_flags == ("-lineinfo", "-DX=a b")


def test_an_empty_environment_gives_the_defaults():
    assert Settings.read({}) == Settings()


def test_relative_cache_directory_does_not_follow_a_later_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings.read({"FLASHINFER_MSA_CACHE_DIR": "cache"})
    assert settings.cache_dir == tmp_path / "cache"


def test_every_variable_that_is_read_is_in_the_table():
    class Recorder(dict):
        def get(self, name, default=None):
            names.add(name)
            return default

    names: set[str] = set()
    Settings.read(Recorder())
    assert names == {variable.name for variable in env.VARIABLES}


def test_no_other_module_reads_a_variable_of_ours():
    for path in (ROOT / "flashinfer_msa").rglob("*.py"):
        if path.name != "env.py":
            text = path.read_text()
            assert not re.search(r"environ\.get\(|getenv\(|environ\[\"", text), path


def test_readme_lists_every_variable():
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("no README in this tree")
    text = readme.read_text()
    assert [
        v.name for v in env.VARIABLES if v.name.startswith(env.PREFIX) and v.name not in text
    ] == []


def test_data_folders_of_a_checkout_lie_beside_the_package():
    assert env.include_dir() == ROOT / "include"
    assert env.template_dir() == ROOT / "templates"


def test_data_folders_of_a_wheel_lie_inside_the_package(tmp_path, monkeypatch):
    package = tmp_path / "flashinfer_msa"
    for folder in (package / "include", package / "templates", tmp_path / "include"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(env, "__file__", str(package / "env.py"))
    assert env.include_dir() == package / "include"
    assert env.template_dir() == package / "templates"


def test_missing_data_folder_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(env, "__file__", str(tmp_path / "flashinfer_msa" / "env.py"))
    with pytest.raises(FileNotFoundError, match="reinstall"):
        env.include_dir()
