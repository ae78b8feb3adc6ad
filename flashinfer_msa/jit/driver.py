# SPDX-License-Identifier: Apache-2.0
"""Whether the installed driver can run what a toolkit builds, told without starting CUDA."""

from __future__ import annotations

import re
from pathlib import Path

from .log import warn_once

_VERSION_FILE = Path("/proc/driver/nvidia/version")
_OLDEST_DRIVER = {12: 525, 13: 580}  # by the toolkit's major version


def warn_if_driver_is_older(release: str) -> None:
    """Warn if a library of this nvcc release will not start on this machine's driver.

    A warning only: a compatibility package may serve a newer toolkit on an older driver.
    """
    try:
        found = re.search(r"Kernel Module.*?\s(\d{3,})\.\d+", _VERSION_FILE.read_text())
    except OSError:
        return  # no driver: building for another machine
    needed = _OLDEST_DRIVER.get(int(release.partition(".")[0] or 0), 0)
    if found and int(found[1]) < needed:
        warn_once(
            f"nvcc {release} builds for driver {needed} or newer, but this machine has {found[1]}; "
            "if kernels fail to start, point CUDA_HOME to an older toolkit or update the driver"
        )
