# SPDX-License-Identifier: Apache-2.0
"""check_aot.py WHEEL [SPEC ...]: RECORD, tag, symbols, manifest and GPU code are as promised.

It must hold the kernels that are named, or all of the matrix.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import sys
import zipfile
from pathlib import Path

from aot.artifacts import inspect_library
from aot.matrix import matrix, wheel_target
from flashinfer_msa.jit.aot import source_hash


def expect(condition: bool, what: str) -> None:
    """Exit if something is not so."""
    if not condition:
        sys.exit(f"the wheel of prebuilt kernels: {what}")


def check_record(content: dict[str, bytes]) -> None:
    """Check every file against RECORD."""
    (name,) = (name for name in content if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(content[name].decode()))}
    expect(rows.keys() == content.keys(), "RECORD lists other files than there are")
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        wanted = ["", ""] if path == name else [f"sha256={digest}", str(len(data))]
        expect(rows[path] == wanted, f"RECORD is wrong about {path}")


def main() -> None:
    """Look at the wheel."""
    wheel = Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    check_record(content)
    manifest = json.loads(content["flashinfer_msa_aot/manifest.json"])
    expect(manifest["source_hash"] == source_hash(), "it is of other sources")
    wanted = sys.argv[2:] or [spec.name for spec in matrix()]
    expect(manifest["artifacts"].keys() == set(wanted), "other kernels than wanted")
    floors = []
    for name, artifact in manifest["artifacts"].items():
        data = content["flashinfer_msa_aot/" + artifact["file"]]
        expect(hashlib.sha256(data).hexdigest() == artifact["sha256"], f"{name}: hash")
        expect(artifact["arch"] == list(wheel_target().codes), f"{name}: arch")
        floors.append(inspect_library(data, wheel_target()))  # raises where the code is not inside
    floor = max(floors)
    tag = f"py3-none-manylinux_{floor[0]}_{floor[1]}_{os.uname().machine}"
    expect(wheel.name.endswith(f"-{tag}.whl"), f"its symbols allow {tag}")
    print(
        f"{wheel.name}: {len(floors)} kernels, RECORD exact, {' '.join(wheel_target().codes)} in "
        f"each, highest GLIBC {'.'.join(map(str, floor))}"
    )


if __name__ == "__main__":
    main()
