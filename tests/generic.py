# SPDX-License-Identifier: Apache-2.0
"""Make the op use the generic builds, as on a machine whose compiler and cache are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flashinfer_msa import jit, launch, plans


@contextlib.contextmanager
def only_generic_builds() -> Iterator[list[str]]:
    """Hide every exact specialisation; give the names of the builds that were loaded."""
    load, ready, loaded = jit.load, dict(launch._ready), []

    def load_generic(spec, capability):
        if spec.force_begin is not None:
            raise jit.MissingKernelError(f"hidden by the test: {spec.name}")
        loaded.append(spec.name)
        return load(spec, capability)

    launch._ready.clear()
    plans._plans.clear()
    jit.load = load_generic
    try:
        yield loaded
    finally:
        jit.load = load
        plans._plans.clear()
        launch._ready.clear()
        launch._ready.update(ready)
