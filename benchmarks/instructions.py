"""Instructions of ten standard questions, as multiples of those of `python -c pass`.

Valgrind counts them. A count hardly depends on what else the machine does, and the ratio little on
how Python was built: so `make proof` can refuse a tenth more than `instructions.json` says.

    python -m benchmarks.instructions [--only WORDS] [--store]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .questions import QUESTIONS, REPLAYS, ROOT, environment

STORED = Path(__file__).with_name("instructions.json")
COUNTED = tuple(one.words for one in QUESTIONS if one.counted)
PROGRAM = str(Path(sys.executable).with_name("gpu-mem-calc"))
VALGRIND = shutil.which("valgrind")
COUNT = ("--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
Ratios = dict[str, dict[str, float]]  # replay, question, multiple of Python's start


def instructions(command: Iterable[str], replay: str) -> int:
    """The instructions of a process."""
    if VALGRIND is None:
        raise SystemExit("valgrind counts the instructions, and it is not installed")
    run = subprocess.run(
        [VALGRIND, *COUNT, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(replay),
        check=False,
    )
    found = re.search(r"I\s+refs:\s+([\d,]+)", run.stderr)
    if found is None or run.returncode > 1:
        raise SystemExit(f"{command} cannot be counted: {run.stderr[-500:]}")
    return int(found[1].replace(",", ""))


def ratio(words: str, replay: str) -> float:
    """How many times the instructions of Python's start a question takes."""
    command = [PROGRAM, *words.split()]
    subprocess.run(command, capture_output=True, cwd=ROOT, env=environment(replay), check=False)
    return round(instructions(command, replay) / bare(replay), 2)


@cache
def bare(replay: str) -> int:
    """The instructions of Python's start, with the variables of a replay."""
    return instructions([sys.executable, "-c", "pass"], replay)


def stored() -> Ratios:
    """The ratios that were stored."""
    found: Ratios = json.loads(STORED.read_text("utf-8"))["ratios"]
    return found


def version() -> str:
    """Of Python: another one runs other instructions."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> None:
    """Print each ratio beside the stored one, and store it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="questions with these words")
    parser.add_argument("--store", action="store_true", help="write instructions.json")
    asked = parser.parse_args()
    found = stored() if STORED.exists() else {replay: {} for replay in REPLAYS}
    for words in COUNTED:
        for replay in REPLAYS if asked.only in words else ():
            before, now = found[replay].get(words), ratio(words, replay)
            was = f"stored: {before:8.2f}" if before else "not stored"
            print(f"{now:8.2f}  {was}  {replay:6}  {words}", flush=True)
            found[replay][words] = now
    if asked.store:
        text = json.dumps({"python": version(), "ratios": found}, indent=1)
        STORED.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
