# SPDX-License-Identifier: Apache-2.0
"""compute-sanitizer over every kernel and every branch of the dispatch."""
