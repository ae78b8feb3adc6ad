# SPDX-License-Identifier: Apache-2.0
"""The command line, with no GPU; a fake toolkit where a command compiles at all."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from fake_cuda import DummySpec, Machine, python_path, sleepers, wait_until

import flashinfer_msa
from flashinfer_msa import cli, jit, warming
from flashinfer_msa.jit import toolchain


class Spec(DummySpec):
    """A dummy that can be named on the command line."""

    @classmethod
    def parse(cls, name: str) -> "Spec":
        if not name.startswith("dummy_"):
            raise ValueError(f"not the name of a spec: {name!r}")
        return cls(name.removeprefix("dummy_"))


COMMON = [Spec("a"), Spec("b")]


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    monkeypatch.setattr(cli, "TopKSelectSpec", Spec)
    monkeypatch.setattr(cli, "common_specs", lambda: COMMON)
    monkeypatch.setattr(cli, "visible_capabilities", lambda: [])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def run(machine, capsys):
    """Run a command; return its status, stdout and stderr."""

    def command(*words: str):
        machine.patch.setattr(jit.loader, "_memo", {})
        code = cli.main(words)
        return code, *capsys.readouterr()

    return command


def run_json(run, *words: str):
    code, out, _ = run(*words, "--json")
    assert code == 0
    return json.loads(out)


READERS = [
    ["show-config"],
    ["list"],
    ["list", "--arch", "9.0"],
    ["clear"],
    ["prune", "--keep-current"],
]


@pytest.mark.parametrize("words", READERS, ids=" ".join)
@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["text", "json"])
def test_24_every_command_but_build_works_without_any_tool(machine, run, words, flag):
    machine.hide_tools()
    code, out, err = run(*words, *flag)
    assert (code, err) == (0, "")
    if flag:
        json.loads(out)


def test_24_command_line_works_without_torch_gpu_and_tools(machine):
    """In a process of its own, with the package's real specs."""
    code = "import sys; sys.modules['torch'] = None; from flashinfer_msa.cli import main; "
    for words in (["show-config"], ["list"], ["clear"]):
        done = subprocess.run(
            [sys.executable, "-c", f"{code}sys.exit(main({words}))"],
            env={"PATH": "/nowhere", "PYTHONPATH": python_path(), "HOME": str(machine.folder)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def test_24_show_config_says_what_was_not_found(machine, run):
    machine.hide_tools()
    machine.patch.setattr(toolchain, "_pip_toolkits", lambda: [])
    found = run_json(run, "show-config")["toolchain"]
    assert {place["nvcc"] for place in found["places"]} == {"not found"}
    assert "nvcc was not found" in found["error"]


def test_24_bad_cuda_home_does_not_stop_show_config(machine, run):
    machine.patch.setenv("CUDA_HOME", "/nonexistent")
    assert "/nonexistent" in run_json(run, "show-config")["toolchain"]["error"]


def test_show_config_tells_toolchain_cache_wheel_and_variables(machine, run):
    machine.load(Spec("a"))
    config = run_json(run, "show-config")
    assert config["toolchain"]["nvcc"] == str(machine.cuda.root / "bin" / "nvcc")
    assert config["toolchain"]["release"] == "13.0.88"
    assert config["cache"][0]["path"] == str(machine.cache)
    assert config["cache"][0]["entries"] == 1
    assert config["wheel"] == {"found": False}
    assert config["environment"]["CUDA_HOME"] == str(machine.cuda.root)
    assert config["version"] == flashinfer_msa.__version__


def test_build_prints_the_library_and_makes_it_a_hit(machine, run):
    code, out, err = run("build", "dummy_x", "--arch", "9.0")
    assert code == 0
    assert out.strip() == str(machine.library())
    assert "[1/1] dummy_x sm90" in err
    assert jit.find(Spec("x"), (9, 0)).source == "cache"


def test_build_makes_one_library_for_each_architecture(machine, run):
    built = run_json(run, "build", "dummy_x", "dummy_y", "--arch", "8.0;9.0+PTX")
    assert [(item["name"], item["arch"]) for item in built] == [
        ("dummy_x", "sm80"), ("dummy_y", "sm80"),
        ("dummy_x", "sm90_ptx90"), ("dummy_y", "sm90_ptx90"),
    ]  # fmt: skip


def test_build_takes_the_arch_list_of_the_environment(machine, run):
    machine.patch.setenv("FLASHINFER_MSA_ARCH_LIST", "8.0+PTX")
    assert run_json(run, "build", "dummy_x")[0]["arch"] == "sm80_ptx80"


def test_build_common(machine, run):
    assert len(run_json(run, "build", "--common", "--arch", "9.0")) == 2


def test_35_build_without_gpu_asks_for_the_architecture(machine, run):
    code, out, err = run("build", "dummy_x")
    assert (code, out) == (1, "")
    assert "--arch" in err
    assert "FLASHINFER_MSA_ARCH_LIST" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "--arch", "9.0"], "--common"),
        (["build", "dummy_x", "--arch", "nine"], "'nine'"),
        (["prune"], "--older-than"),
        (["warmup"], "no GPU"),
    ],
)
def test_command_that_cannot_work_fails_and_says_why(run, words, said):
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert said in err


@pytest.mark.parametrize(
    "words",
    [[], ["brew"], ["build", "nonsense", "--arch", "9.0"], ["prune", "--older-than", "soon"]],
)
def test_wrong_usage_is_status_2(machine, words, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(words)
    assert error.value.code == 2
    assert capsys.readouterr().err


def test_failed_build_is_status_1_with_the_compilers_words(machine, run):
    machine.cuda.set(fails="a.cu(1): error: no luck")
    code, _, err = run("build", "dummy_x", "--arch", "9.0")
    assert code == 1
    assert "no luck" in err


def test_list_tells_cached_and_absent_kernels(machine, run):
    machine.load(Spec("a"))
    rows = {row["name"]: row for row in run_json(run, "list", "--arch", "9.0")}
    assert rows["dummy_a"]["source"] == "cache"
    assert rows["dummy_a"]["arch"] == "sm90"
    assert rows["dummy_a"]["current"] is True
    assert rows["dummy_a"]["bytes"] > 0
    assert rows["dummy_b"]["source"] == "absent"


def test_list_tells_stale_and_damaged_entries(machine, run):
    machine.load(Spec("a"))
    (machine.data / "include" / "flashinfer_msa" / "dummy.cuh").write_text("// edited\n")
    (row,) = run_json(run, "list")
    assert row["current"] is False
    machine.library().with_name("meta.json").write_text("")
    (row,) = run_json(run, "list")
    assert row["source"] == "damaged"


def test_60_warmup_leaves_nothing_to_compile(machine, run):
    code, _, err = run("warmup", "--arch", "8.0", "--arch", "9.0")
    assert code == 0
    assert "4/4" in err
    count = machine.cuda.compiles()
    for capability in ((8, 0), (9, 0)):
        for spec in COMMON:
            machine.load(spec, capability)
    assert machine.cuda.compiles() == count == 4


def test_60_library_call_does_the_same(machine):
    machine.patch.setattr(jit.loader, "_memo", {})
    seen = []
    ready = warming.warmup(COMMON, [(9, 0), (8, 0)], seen.append)
    assert [(w.spec, w.capability) for w in ready] == [
        (spec, capability) for capability in ((9, 0), (8, 0)) for spec in COMMON
    ]
    assert sorted(seen, key=str) == sorted(ready, key=str)
    assert machine.cuda.compiles() == 4


def test_warmup_finishes_the_others_before_it_reports_a_failure(machine):
    machine.patch.setattr(jit.loader, "_memo", {})
    broken = Spec("broken", body="#error broken on purpose")
    with pytest.raises(jit.CompileError, match="broken on purpose"):
        warming.warmup([broken, *COMMON], [(9, 0)])
    assert len(machine.entries()) == 2


def test_clear_removes_every_kernel(machine, run):
    for spec in COMMON:
        machine.load(spec)
    assert run_json(run, "clear")["entries"] == 2
    assert machine.entries() == []
    assert (machine.cache / "locks").is_dir()
    assert machine.load(COMMON[0]).flashinfer_msa_abi_version() == 1


def test_59_failing_clear_is_status_1(machine, run):
    machine.load(Spec("a"))

    def fail(*_, **__):
        raise OSError(30, "Read-only file system")

    machine.patch.setattr(os, "rename", fail)
    code, _, err = run("clear")
    assert code == 1
    assert "Read-only" in err


def age_entries(machine, seconds: float) -> None:
    for entry in machine.entries():
        path = entry / "meta.json"
        meta = json.loads(path.read_text())
        path.write_text(json.dumps(meta | {"created": time.time() - seconds}))


def test_prune_by_age(machine, run):
    machine.load(Spec("old"))
    age_entries(machine, 3 * 86400)
    machine.load(Spec("new"))
    assert run_json(run, "prune", "--older-than", "4d")["entries"] == 0
    assert run_json(run, "prune", "--older-than", "2d")["entries"] == 1
    assert "dummy_new" in machine.entries()[0].name


def test_prune_keeps_what_the_present_sources_use(machine, run):
    machine.load(Spec("a"))
    (machine.data / "include" / "flashinfer_msa" / "dummy.cuh").write_text("// edited\n")
    machine.load(Spec("a"))
    current = jit.find(Spec("a"), (9, 0)).path.parent
    assert run_json(run, "prune", "--keep-current")["entries"] == 1
    assert machine.entries() == [current]


def test_prune_with_both_conditions_removes_only_what_meets_both(machine, run):
    machine.load(Spec("a"))
    age_entries(machine, 3 * 86400)
    assert run_json(run, "prune", "--older-than", "1d", "--keep-current")["entries"] == 0


def test_prune_removes_damaged_entries(machine, run):
    machine.load(Spec("a"))
    machine.library().with_name("meta.json").write_text("")
    assert run_json(run, "prune", "--older-than", "1000d")["entries"] == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("12h", 43200), ("30d", 2592000), ("2w", 1209600), ("1", 86400)],
)
def test_ages(text, seconds):
    assert cli.parse_age(text) == seconds


CLI = """
import sys
from pathlib import Path
from fake_cuda import use_data
from test_cli import Spec
from flashinfer_msa import cli
use_data(Path(sys.argv[1]))
cli.TopKSelectSpec = Spec
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("command", ["build", "warmup"])
def test_52_stopped_command_stops_its_compilers_and_removes_its_work(
    machine, number, status, command
):
    marker = f"{700 + number}.{os.getpid()}"  # unlike that of any other run
    machine.cuda.set(sleep=marker)
    words = [sys.executable, "-c", CLI, str(machine.data), command, "dummy_x", "--arch", "9.0"]
    process = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": python_path()}, stderr=subprocess.PIPE
    )
    wait_until(lambda: sleepers(marker))
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == status
    assert list((machine.cache / "staging").iterdir()) == []
    assert not sleepers(marker)
