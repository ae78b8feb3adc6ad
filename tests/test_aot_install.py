# SPDX-License-Identifier: Apache-2.0
"""Both wheels in a new environment outside of the tree: kernels with no compiler and no JIT."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from aot_wheels import SPECS, Built, build_once

from flashinfer_msa import __version__
from flashinfer_msa.spec import ABI_VERSION

pytestmark = pytest.mark.nvcc

# Runs where both wheels are installed; tells what was served, what was logged, what was touched.
CLIENT = """
import json, logging, sys
touched = []
def audit(event, args):
    mode = str(args[1] or "r") if event == "open" else ""
    if event in ("os.mkdir", "os.rename", "os.remove", "subprocess.Popen", "os.posix_spawn"):
        touched.append(event)
    if event == "open" and isinstance(args[1], str) and set(mode) & set("wax+"):
        touched.append(str(args[0]))
sys.addaudithook(audit)
logs = []
class Handler(logging.Handler):
    def emit(self, record): logs.append(record.getMessage())
import flashinfer_msa
logging.getLogger("flashinfer_msa").addHandler(Handler())
from flashinfer_msa import jit
from flashinfer_msa.spec import TopKSelectSpec
names, capabilities = json.loads(sys.argv[1])
served = {}
for name in names:
    for capability in capabilities:
        spec, key = TopKSelectSpec.parse(name), f"{name} {capability}"
        try:
            found = jit.find(spec, tuple(capability)).source
            served[key] = [found, jit.load(spec, tuple(capability)).flashinfer_msa_abi_version()]
        except jit.MissingKernelError as error:
            served[key] = ["missing", str(error)]
print(json.dumps({"served": served, "logs": logs, "touched": touched,
                  "home": flashinfer_msa.__file__}))
"""
GPUS = [[8, 0], [8, 6], [8, 9], [9, 0], [10, 0], [12, 0]]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    return build_once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def packages(built) -> Path:
    """Build the package's own wheel beside that of the kernels."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--retries", "1"]
    if importlib.util.find_spec("hatchling"):
        pip.append("--no-build-isolation")
    command = [*pip, "-w", str(built.wheel.parent), str(built.tree)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and "hatchling" in done.stderr:
        pytest.skip("the build backend hatchling is not here and cannot be had without a network")
    assert done.returncode == 0, done.stderr
    return built.wheel.parent


@pytest.fixture
def installed(tmp_path, packages) -> Path:
    """Install both wheels, and nothing else, into a new environment."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    pip += ["--quiet", "--no-deps", "--no-index", "--no-compile", "--find-links", str(packages)]
    subprocess.run([*pip, "flashinfer-msa", "flashinfer-msa-aot"], cwd=tmp_path, check=True)
    return venv


def lend_dependencies(venv: Path) -> None:
    """Add what a look-up in the cache needs and pip was told to leave out."""
    for name in ("jinja2", "markupsafe", "filelock"):
        origin = importlib.util.find_spec(name).origin
        package_dir(venv, "flashinfer_msa").with_name(name).symlink_to(Path(origin).parent)


def ask(venv: Path, names=SPECS, gpus=GPUS) -> dict:
    """Load kernels in that environment, with no tool on the machine and no place to write."""
    home = venv.parent / "home"
    home.mkdir(mode=0o555, exist_ok=True)
    env = {"PATH": str(venv.parent / "nowhere"), "HOME": str(home)}
    env["FLASHINFER_MSA_DISABLE_JIT"] = "1"
    command = [str(venv / "bin" / "python"), "-IB", "-c", CLIENT, json.dumps([names, gpus])]
    done = subprocess.run(command, cwd=venv.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []
    return json.loads(done.stdout)


def package_dir(venv: Path, name: str) -> Path:
    """Return where a package was installed."""
    (found,) = venv.glob(f"lib/python*/site-packages/{name}")
    return found


def test_23_42_wheel_serves_every_gpu_with_no_tool_and_writes_nothing(installed):
    said = ask(installed)
    assert said["home"].startswith(str(installed))
    asked = [f"{name} {gpu}" for name in SPECS for gpu in GPUS]
    assert said["served"] == {key: ["aot", ABI_VERSION] for key in asked}
    assert said["logs"] == []
    assert said["touched"] == []


def test_57_kernel_that_is_not_in_the_wheel_is_named(installed):
    lend_dependencies(installed)
    name = "topk_select_k5_f32_b0_e0_token"
    ((source, message),) = ask(installed, [name], [[9, 0]])["served"].values()
    assert source == "missing"
    assert name in message
    assert "flashinfer-msa-aot" in message


def test_11_wheel_of_other_sources_is_ignored_with_one_warning_naming_both(installed):
    lend_dependencies(installed)
    header = next(package_dir(installed, "flashinfer_msa").rglob("*.cuh"))
    header.write_text(header.read_text() + "\n")
    said = ask(installed)
    assert {source for source, _ in said["served"].values()} == {"missing"}
    assert len(said["logs"]) == 1
    assert f"flashinfer-msa-aot {__version__}" in said["logs"][0]
    assert f"flashinfer-msa {__version__}" in said["logs"][0]


def test_06_library_that_was_tampered_with_is_never_opened(installed):
    lend_dependencies(installed)
    library = package_dir(installed, "flashinfer_msa_aot") / "kernels" / f"{SPECS[0]}.so"
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)
    said = ask(installed, gpus=[[9, 0]])
    assert said["served"][f"{SPECS[0]} [9, 0]"][0] == "missing"
    assert said["served"][f"{SPECS[1]} [9, 0]"] == ["aot", ABI_VERSION]
    assert any("another hash" in line for line in said["logs"])


def test_41_wheel_installed_under_umask_002_or_read_only_serves(installed):
    package = package_dir(installed, "flashinfer_msa_aot")
    for mode in (0o664, 0o444):
        for path in package.rglob("*"):
            if path.is_file():
                path.chmod(mode)
        assert {source for source, _ in ask(installed)["served"].values()} == {"aot"}
