# SPDX-License-Identifier: Apache-2.0
"""Prebuilding kernels: which ones, for which GPUs, and the wheel `flashinfer-msa-aot`."""
