"""Asks many drawn questions on all cores, and writes a tally.

python -m tests.questions --seeds 1-16 --count 500 --replay 0.2 --workers 16 --out tally.json
python -m tests.questions --ledger --seeds 1-16 --count 10000 --workers 16 --out ledger.json
python -m tests.questions --ask '{"kind": "run", ...}'      (one question of a tally again)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from itertools import takewhile
from pathlib import Path

from tests.questions.asking import LIMIT, ask
from tests.questions.question import from_text
from tests.questions.seeds import ask_ledgers, ask_seed, tallies
from tests.questions.tally import Tally, as_data, lines

os.environ["HF_HUB_OFFLINE"] = "1"  # no name is asked for on the network
os.environ.setdefault("OMP_NUM_THREADS", "1")


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--seeds", default="1-1", help="first and last seed, such as 1-200")
    parser.add_argument("--count", type=int, default=100, help="questions of each seed")
    parser.add_argument("--replay", type=float, default=0.2, help="share of run files replayed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds of one question")
    parser.add_argument("--minutes", type=float, help="start no further seed after this time")
    parser.add_argument("--out", type=Path, help="the tally as JSON")
    parser.add_argument("--ledger", action="store_true", help="by the ledger and by arrays alone")
    parser.add_argument("--ask", help="ask one question, as a tally shows it")
    return parser.parse_args()


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


def main() -> int:
    """Ask, and print the tally; 1 where a law is broken."""
    args = arguments()
    if args.ask:
        outcome = ask(from_text(args.ask), args.limit)
        print(outcome)
        return int(bool(outcome.broken))
    first, _, last = args.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    work = partial(ask_ledgers, count=args.count)
    if not args.ledger:
        work = partial(ask_seed, count=args.count, replay=args.replay, limit=args.limit)
    tally = ask_all(work, seeds, args)
    print("\n".join(lines(tally)))
    return int(bool(tally.broken))


def ask_all(work: partial[Tally], seeds: range, args: argparse.Namespace) -> Tally:
    """Ask the questions of all seeds; the tally so far is written after each seed."""
    tally, begin = Tally(), time.monotonic()
    command = f"python -m tests.questions {' '.join(sys.argv[1:])}"

    def in_time() -> bool:
        return not args.minutes or time.monotonic() - begin < 60 * args.minutes

    wanted = takewhile(lambda _: in_time(), seeds)
    for done, found in enumerate(tallies(work, wanted, args.workers), 1):
        tally.add(found)
        minutes = (time.monotonic() - begin) / 60
        print(f"{done} seeds, {tally.questions:,} in {minutes:.1f} min", file=sys.stderr)
        if args.out:
            args.out.write_text(json.dumps(as_data(tally, command), indent=1) + "\n")
    return tally


if __name__ == "__main__":
    raise SystemExit(main())
