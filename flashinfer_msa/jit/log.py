# SPDX-License-Identifier: Apache-2.0
"""The package's logger: silent by default, on stderr with FLASHINFER_MSA_VERBOSE=1."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("flashinfer_msa")
logger.addHandler(logging.NullHandler())

_warned: set[str] = set()


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """A type of its own, so that it is added once however often it is asked for."""


def enable_stderr() -> None:
    """Print the log to stderr from now on."""
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("flashinfer_msa: %(message)s"))
        logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)


def warn_once(message: str) -> None:
    """Log a warning the first time this process meets it."""
    if message not in _warned:
        _warned.add(message)
        logger.warning(message)
