"""What `measure`'s options say of a case, and which do not go together."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..core.errors import InputError


def check_options(args: argparse.Namespace) -> None:
    """Options that do not go together."""
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
    if args.again and not args.cases:
        problems.append("--again is for --cases; one run is always measured")
    if problems:
        raise InputError(problems)


def run_name(args: argparse.Namespace) -> str:
    """What a result is called: as --id says, else after where the run comes from."""
    if args.id or args.preset:
        return str(args.id or args.preset)
    return Path(args.config).stem if args.config else (args.function or "").replace(":", ".")


def conditions(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say of a case; they win over what a file says."""
    given = {"rank": args.rank, "steps": args.steps, "cap_bytes": args.cap,
             "alloc_conf": args.alloc_conf, "timeout": args.timeout}  # fmt: skip
    return {key: value for key, value in given.items() if value is not None}
