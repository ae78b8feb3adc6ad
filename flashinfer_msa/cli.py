# SPDX-License-Identifier: Apache-2.0
"""The command line: `flashinfer-msa` or `python -m flashinfer_msa`.

Exit status: 0 done, 1 failed or nothing to act on, 2 wrong usage, 130 interrupted.
Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from flashinfer_msa import jit
from flashinfer_msa.env import PREFIX, Settings
from flashinfer_msa.jit import maintain, status
from flashinfer_msa.jit.inventory import Row, inventory, is_current
from flashinfer_msa.spec import TopKSelectSpec, common_specs
from flashinfer_msa.warming import visible_capabilities
from flashinfer_msa.warming import warmup as load_all

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_age(text: str) -> float:
    """Read an age such as `12h`, `30d` or `2w`; a bare number counts days."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age; write 90m, 12h, 30d or 2w")
    return float(match[1]) * _UNITS[match[2] or "d"]


def _parse_spec(name: str) -> Any:
    try:
        return TopKSelectSpec.parse(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _capabilities(arch: Sequence[str] | None) -> list[tuple[int, int]]:
    """Return the GPUs that `--arch` names, else the visible ones."""
    entries = jit.parse_arch_list(";".join(arch or ()))
    return [entry.arch[:2] for entry in entries] or visible_capabilities()


def _print(value: object, as_json: bool, text: str) -> None:
    print(json.dumps(value, indent=1, default=str) if as_json else text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _gpus() -> list[dict[str, str]]:
    try:
        import torch

        gpus = []
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            major, minor = torch.cuda.get_device_capability(index)
            gpus.append({"name": torch.cuda.get_device_name(index), "arch": f"{major}.{minor}"})
        return gpus
    except ImportError:
        return []
    except Exception as error:  # a broken driver must not hide the rest of the report
        return [{"name": f"cannot be listed: {error}", "arch": "?"}]


def _outline(value: Any, indent: str = "") -> str:
    """Return nested dicts and lists as indented text."""
    if isinstance(value, dict):
        items = [(f"{key}:", item) for key, item in value.items()]
    else:
        items = [("-", item) for item in value]
    lines = []
    for label, item in items:
        if isinstance(item, dict) and label == "-":
            lines.append(f"{indent}- " + ", ".join(f"{k}: {v}" for k, v in item.items()))
        elif isinstance(item, (dict, list)):
            lines += [indent + label, _outline(item, indent + "  ")] if item else []
        else:
            lines.append(f"{indent}{label} {item}")
    return "\n".join(lines)


def show_config(options: argparse.Namespace) -> int:
    """Print the toolchain, cache, wheel, GPUs and variables in force."""
    config = status.describe(Settings.read()) | {"gpus": _gpus()}
    _print(config, options.json, _outline(config))
    return 0


def build(options: argparse.Namespace) -> int:
    """Compile kernels into the cache, whether or not a prebuilt wheel has them."""
    specs = options.specs or (common_specs() if options.common else ())
    entries = jit.parse_arch_list(";".join(options.arch or ()))
    entries = entries or jit.parse_arch_list(Settings.read().arch_list)
    targets = [jit.Target.of(entry) for entry in entries]
    targets = targets or [jit.resolve_target(c) for c in _capabilities(None)]
    if not specs:
        raise ValueError("name the kernels to build, or give --common")
    if not targets:
        raise ValueError(f"no GPU is visible; give --arch 9.0 or set {PREFIX}ARCH_LIST")
    built = []
    pairs = [(spec, target) for target in targets for spec in specs]
    for count, (spec, target) in enumerate(pairs, 1):
        began = time.monotonic()
        path = jit.build(spec, target)
        seconds = time.monotonic() - began
        _say(f"[{count}/{len(pairs)}] {spec.name} {target.name} {seconds:.1f} s")
        built.append({"name": spec.name, "arch": target.name, "path": path, "seconds": seconds})
    _print(built, options.json, "\n".join(str(item["path"]) for item in built))
    return 0


def warmup(options: argparse.Namespace) -> int:
    """Make kernels ready for the visible GPUs: load them, and build what is missing."""
    specs = options.specs or list(common_specs())
    capabilities = _capabilities(options.arch)
    total = len(specs) * len(set(capabilities))
    done = 0

    def progress(warmed: Any) -> None:
        nonlocal done
        done += 1
        bar = "#" * (24 * done // total)
        major, minor = warmed.capability
        line = f"{warmed.spec.name} {major}.{minor} {warmed.seconds:.1f} s"
        _say(f"[{bar:<24}] {done}/{total} {line}")

    ready = load_all(specs, dict.fromkeys(capabilities), progress)
    rows = [{"name": w.spec.name, "arch": w.capability, "seconds": w.seconds} for w in ready]
    _print(rows, options.json, f"{len(rows)} kernels are ready")
    return 0


def _format_row(row: Row) -> str:
    size = f"{row.bytes / 1024:.0f} KiB" if row.bytes else "-"
    age = f"{row.age / 3600:.1f} h" if row.age is not None else "-"
    took = f"{row.seconds:.1f} s" if row.seconds is not None else "-"
    stale = "" if row.current else "  stale"
    return f"{row.name:44} {row.source:7} {row.arch:16} {size:>10} {age:>10} {took:>8}{stale}"


def list_kernels(options: argparse.Namespace) -> int:
    """Print every known kernel: prebuilt, cached, or absent for the GPUs asked for."""
    specs = common_specs()
    parse = TopKSelectSpec.parse
    rows = inventory(Settings.read(), specs, parse, _capabilities(options.arch))
    heading = f"{'kernel':44} {'source':7} {'arch':16} {'size':>10} {'age':>10} {'build':>8}"
    text = "\n".join([heading, *map(_format_row, rows)])
    _print([row._asdict() for row in rows], options.json, text)
    return 0


def _report_removal(removal: maintain.Removal, as_json: bool) -> int:
    text = f"removed {removal.entries} kernels, {removal.bytes / 2**20:.1f} MiB"
    _print(vars(removal), as_json, text)
    for failure in removal.failures:
        _say(f"error: {failure}")
    return 1 if removal.failures else 0


def clear(options: argparse.Namespace) -> int:
    """Remove every cached kernel; safe while others build, and locks stay."""
    return _report_removal(maintain.clear(Settings.read()), options.json)


def prune(options: argparse.Namespace) -> int:
    """Remove old kernels, or those that the present sources would not use."""
    if options.older_than is None and not options.keep_current:
        raise ValueError("say which: --older-than 30d, --keep-current, or both")
    settings, now = Settings.read(), time.time()

    def doomed(entry: Any) -> bool:
        if entry is None:
            return True
        if options.older_than is not None and now - entry.meta["created"] <= options.older_than:
            return False
        current = options.keep_current and is_current(entry, TopKSelectSpec.parse, settings)
        return not current

    return _report_removal(maintain.remove_entries(settings, doomed), options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flashinfer-msa", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    actions = (show_config, build, list_kernels, warmup, clear, prune)
    names = ("show-config", "build", "list", "warmup", "clear", "prune")
    made = {}
    for name, action in zip(names, actions, strict=True):
        made[name] = commands.add_parser(name, help=action.__doc__, description=action.__doc__)
        made[name].add_argument("--json", action="store_true", help="print JSON on stdout")
        made[name].set_defaults(action=action)
    for name in ("build", "warmup"):
        made[name].add_argument("specs", nargs="*", type=_parse_spec, metavar="KERNEL")
    for name in ("build", "warmup", "list"):
        made[name].add_argument("--arch", action="append", help="arch list, such as 8.0;9.0")
    made["build"].add_argument("--common", action="store_true", help="all common kernels")
    made["prune"].add_argument("--older-than", type=parse_age, metavar="AGE", help="such as 30d")
    made["prune"].add_argument("--keep-current", action="store_true", help="keep what is usable")
    return parser


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(143)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    # So that a terminated build stops its compilers and removes its work.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        status_code: int = options.action(options)
    except KeyboardInterrupt:
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        _say(f"error: {error}")
        return 1
    return status_code
