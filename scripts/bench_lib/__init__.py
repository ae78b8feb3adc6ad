# SPDX-License-Identifier: Apache-2.0
"""How fast ``msa_topk_select`` is, beside the floor of its bytes and beside its peers."""
