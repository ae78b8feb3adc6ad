# SPDX-License-Identifier: Apache-2.0
"""Where a test can run, kernels built ahead, and hypothesis without surprises."""

import contextlib
import fcntl
import os
import signal

import pytest
import scores
import torch
from fake_cuda import Machine
from hypothesis import HealthCheck, settings

# The same examples on every run; `--hypothesis-profile=explore` looks for new ones.
_QUIET = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, max_examples=150, **_QUIET)
settings.register_profile("explore", max_examples=2000, **_QUIET)
settings.load_profile("repeatable")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores

# What a shell starts in the background ignores it, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MANY = 50  # tests on the GPU: from here on all shared kernels are needed


def _gpus() -> int:
    """Return how many CUDA GPUs can run the kernels."""
    if not torch.cuda.is_available():
        return 0
    able = (torch.cuda.get_device_capability(i) >= (8, 0) for i in range(torch.cuda.device_count()))
    return sum(able)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run; look for GPUs only if some test asks."""
    wanted = {"gpu": 1, "two_gpus": 2}
    marked = [(item, name) for item in items for name in wanted if item.get_closest_marker(name)]
    gpus = _gpus() if marked else 0
    for item, name in marked:
        if gpus < wanted[name]:
            reason = f"needs {wanted[name]} CUDA GPU(s) of capability 8.0 or newer, found {gpus}"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _shared_kernels(request: pytest.FixtureRequest) -> None:
    """Build what most GPU tests share side by side, not one by one as the tests come to it."""
    marked = [item for item in request.session.items if item.get_closest_marker("gpu")]
    if len(marked) >= _MANY and _gpus():
        from flashinfer_msa.warming import warmup

        # A kernel that cannot be built is reported by each test that calls it.
        with contextlib.suppress(RuntimeError):
            warmup(scores.shared_builds())


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Run the test on the reference's CPU path and on the kernels."""
    return torch.device(request.param)


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    """Return a machine of the test's own: a cache, and a toolkit that is a script."""
    monkeypatch.setattr(fcntl, "flock", fcntl.flock)  # put back what a test replaces
    return Machine(tmp_path, monkeypatch)
