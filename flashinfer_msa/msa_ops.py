# SPDX-License-Identifier: Apache-2.0
"""The names of ``flashinfer.msa_ops`` that this package serves: a drop-in import."""

from flashinfer_msa.topk_select import msa_topk_select

__all__ = ["msa_topk_select"]
