"""The conditions of a case from `measure`'s options, and which options exclude each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..runfile.text.errors import InputError


def check_options(args: argparse.Namespace) -> None:
    """Raise every pair of options that exclude each other."""
    problems = []
    if args.cases and (args.config or args.preset):
        problems.append("give one of --config, --preset and --cases")
    if args.cases and not args.append:
        problems.append("--cases needs --append FILE, where every finished case is kept")
    for name in ("snapshot", "id"):
        if args.cases and getattr(args, name):
            problems.append(f"--{name} is for one run; leave it out with --cases")
    if args.cases and args.function:
        problems.append("--function is for one run; a case names its own in 'function'")
    if args.find_minimum and args.cap is not None:
        problems.append("--find-minimum tries caps itself; leave --cap out")
    if args.between is not None and not args.find_minimum:
        problems.append("--between is for --find-minimum; add it, or leave --between out")
    if args.between is not None and args.snapshot:
        problems.append("--snapshot is of a run without a cap; leave --between out")
    if args.again and not args.cases:
        problems.append("--again is for --cases; one run is always measured")
    if problems:
        raise InputError(problems)


def run_name(args: argparse.Namespace) -> str:
    """The name of a result: --id, else the preset, the file or the function of the run."""
    if args.id or args.preset:
        return str(args.id or args.preset)
    return Path(args.config).stem if args.config else (args.function or "").replace(":", ".")


def conditions(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `MeasureCase` that the options set; they override those of a file."""
    options = {
        "rank": args.rank,
        "steps": args.steps,
        "cap_bytes": args.cap,
        "bounds_bytes": args.between,
        "alloc_conf": args.alloc_conf,
        "timeout": args.timeout,
    }
    return {key: value for key, value in options.items() if value is not None}
