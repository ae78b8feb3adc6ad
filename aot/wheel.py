# SPDX-License-Identifier: Apache-2.0
"""Writing a wheel that is the same to the byte whenever, wherever and by whomever it is built."""

from __future__ import annotations

import base64
import hashlib
import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

_EARLIEST = 315532800  # 1980-01-01, the first day that a zip file can name


def timestamp() -> tuple[int, int, int, int, int, int]:
    """Return the time that every entry gets: SOURCE_DATE_EPOCH, else a fixed one."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if text and not text.isdecimal():
        raise ValueError(f"SOURCE_DATE_EPOCH={text!r} is not a number of seconds")
    return time.gmtime(max(int(text or 0), _EARLIEST))[:6]


def _record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"{name},sha256={digest.decode()},{len(data)}\n"


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, timestamp())
    entry.external_attr = (0o100644) << 16
    entry.create_system = 3  # Unix, whatever this is built on
    archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=9)


def write_wheel(
    out: Path, name: str, version: str, tag: str, files: Mapping[str, bytes], metadata: str
) -> Path:
    """Write a wheel; until it is complete there is no file of its name.

    Parameters
    ----------
    out : Path
        Folder, created if it is missing.
    name, version, tag : str
        As they stand in the file name.
    files : mapping
        Path in the wheel to content.
    metadata : str
        Content of `METADATA`.

    Returns
    -------
    Path
        The wheel.
    """
    info = f"{name}-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: {name}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    own = {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    entries = sorted(files.items()) + sorted(own.items())  # installers want dist-info last
    record = "".join(_record_line(*entry) for entry in entries) + f"{info}/RECORD,,\n"
    out.mkdir(parents=True, exist_ok=True)
    final = out / f"{name}-{version}-{tag}.whl"
    draft = out / f".{final.name}.{os.getpid()}"
    try:
        with zipfile.ZipFile(draft, "w") as archive:
            for path, data in [*entries, (f"{info}/RECORD", record.encode())]:
                _add(archive, path, data)
        os.replace(draft, final)
    finally:
        draft.unlink(missing_ok=True)
    return final
