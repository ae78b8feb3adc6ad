# SPDX-License-Identifier: Apache-2.0
"""Where the scores of a call may lie."""

from __future__ import annotations

from collections.abc import Callable

# Strides of an (H, P, S) view. Both orders of memory, with and without padding.
LAYOUTS: dict[str, Callable[[int, int, int], tuple[int, int, int]]] = {
    "s_contiguous": lambda h, p, s: (p * s, s, 1),
    "s_padded": lambda h, p, s: (p * (s + 3), s + 3, 1),
    "s_padded_heads": lambda h, p, s: (p * s + 5, s, 1),
    "s_token_slice": lambda h, p, s: (s, h * s, 1),  # memory is (P, H, S)
    "s_expanded_heads": lambda h, p, s: (0, s, 1),
    "p_contiguous": lambda h, p, s: (s * p, 1, p),  # memory is (H, S, P)
    "p_padded": lambda h, p, s: (s * (p + 5), 1, p + 5),
    "p_token_major": lambda h, p, s: (p, 1, h * p),  # memory is (S, H, P)
    "p_expanded_heads": lambda h, p, s: (0, 1, p),
}
