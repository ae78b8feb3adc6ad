# SPDX-License-Identifier: Apache-2.0
"""`python -m flashinfer_msa`."""

import sys

from flashinfer_msa.cli import main

sys.exit(main())
