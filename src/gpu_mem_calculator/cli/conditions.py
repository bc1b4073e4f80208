"""The conditions of a case from `measure`'s options, and which options exclude each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..runfile.text.errors import InputError


def check_options(args: argparse.Namespace) -> None:
    """Raise every pair of options that exclude each other."""
    kept = "--cases needs --append FILE, where every finished case is kept"
    many, search, between = bool(args.cases), args.find_minimum, args.between is not None
    checks = [
        (many and (args.config or args.preset), "give one of --config, --preset and --cases"),
        (many and not args.append, kept),
        *(
            (many and getattr(args, name), f"--{name} is for one run; leave it out with --cases")
            for name in ("snapshot", "id")
        ),
        (many and args.function, "--function is for one run; a case names its own in 'function'"),
        (search and args.cap is not None, "--find-minimum tries caps itself; leave --cap out"),
        (between and not search, "--between is for --find-minimum; add it, or leave --between out"),
        (between and args.snapshot, "--snapshot is of a run without a cap; leave --between out"),
        (args.again and not many, "--again is for --cases; one run is always measured"),
    ]
    problems = [text for wrong, text in checks if wrong]
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
