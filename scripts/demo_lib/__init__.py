# SPDX-License-Identifier: Apache-2.0
"""Needles in a long context: what block selection finds, and what leaving the rest out costs."""
