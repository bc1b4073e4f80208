"""Compare predictions with measured runs, one JSON object per line.

--from-log writes such a line from a log; its run is that of --config, of the
command behind --, or what the log states.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..runfile.text.errors import InputError, printable
from .output import show_answer, write

PICTURES = (".svg", ".html")


def run(args: argparse.Namespace) -> int:
    """Predict every measured run, compare, and report the score."""
    if args.from_log:
        return _from_log(args)
    if not args.runs:
        raise InputError("backtest needs RUNS.jsonl, a file of measured runs; or --from-log LOG")
    if args.share:
        return _share(args)
    from ..lab.backtest.rows import read_rows
    from ..lab.backtest.score import as_data, backtest

    if args.picture is not None and Path(args.picture).suffix.lower() not in PICTURES:
        raise InputError(f"--picture {args.picture} must end in .svg or .html")
    rows = read_rows(args.runs)
    report = backtest(rows, args.rung, jobs=args.jobs, progress=_progress)
    _clear()
    from ..report.backtest import text_score

    lines = text_score(report, args.runs, phases=args.phases)
    show_answer(args, lambda: as_data(report, phases=args.phases), lines)
    if args.picture is not None:
        from ..report.backtest_picture import page, picture

        drawn = picture(report, Path(args.runs).name)
        html = args.picture.lower().endswith(".html")
        write(page(drawn) if html else drawn, args.picture, "--picture")
    return 0


def _share(args: argparse.Namespace) -> int:
    """Write the runs without what names a person, a machine or a model that is not public."""
    import json

    from ..lab.backtest.share import shared_rows

    found = shared_rows(args.runs)
    write("\n".join(json.dumps(one.row) for one in found), args.share, "--share")
    left = sorted({key for one in found for key in one.left_out})
    write(f"{len(found)} run{'s' * (len(found) != 1)}; look at {args.share} before you send it")
    write(f"left out: {', '.join(left) or 'nothing'}")
    return 0


def _from_log(args: argparse.Namespace) -> int:
    """Write the measured run of a log."""
    import json

    from ..lab.backtest.from_log import row_of_log

    if args.runs or (args.config and args.launch):
        raise InputError("--from-log takes a log and one run: --config, or a command behind --")
    row = row_of_log(args.from_log, args.config or args.launch or None)
    write(json.dumps(row, ensure_ascii=False), args.output)
    return 0


def _progress(count: int, total: int, name: str) -> None:
    """One line on stderr that the next one overwrites; on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{count}/{total}  {printable(name)}"[:80])
        sys.stderr.flush()


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
