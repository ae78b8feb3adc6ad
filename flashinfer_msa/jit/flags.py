# SPDX-License-Identifier: Apache-2.0
"""The compiler's flags; all of them are part of the cache key."""

from __future__ import annotations

# No fast-math: it flushes subnormals and breaks the order of scores.
COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fvisibility=hidden",
    "-Xfatbin=-compress-all",
)
# nvcc links, with the static runtime and without libcuda, so that the library depends on no
# toolkit, torch or Python; nothing it defines can be replaced by another library's symbols.
LINK_FLAGS = (
    "-shared",
    "-cudart=static",
    "-Xlinker=-Bsymbolic",
    "-Xlinker=--exclude-libs=ALL",
    "-Xlinker=--gc-sections",
    "-Xlinker=--as-needed",
    "-Xlinker=-s",
)
STATIC_RUNTIME_FLAGS = ("-Xcompiler=-static-libgcc", "-Xcompiler=-static-libstdc++")
