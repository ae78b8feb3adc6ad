# SPDX-License-Identifier: Apache-2.0
"""Make the op use the generic builds, as on a machine whose compiler and cache are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module

from flashinfer_msa import jit

_MODULE = import_module("flashinfer_msa.topk_select")


@contextlib.contextmanager
def only_generic_builds() -> Iterator[list[str]]:
    """Hide every exact specialisation; give the names of the builds that were loaded."""
    load, launchers, loaded = jit.load, dict(_MODULE._libraries), []

    def load_generic(spec, capability):
        if spec.force_begin is not None:
            raise jit.MissingKernelError(f"hidden by the test: {spec.name}")
        loaded.append(spec.name)
        return load(spec, capability)

    _MODULE._libraries.clear()
    jit.load = load_generic
    try:
        yield loaded
    finally:
        jit.load = load
        _MODULE._libraries.clear()
        _MODULE._libraries.update(launchers)
