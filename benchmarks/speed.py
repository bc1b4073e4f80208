"""CPU time of the standard questions, as multiples of `python -c pass` in the same run.

User and system time of the whole process, compiled modules present, the least of a few runs, with
the replay in C and in Python; beside it the aim, and the peak memory.

    python -m benchmarks.speed [--only WORDS] [--replay c] [--store VERSION]

`--store` writes the column of a version into `benchmarks/history.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from pathlib import Path

from .questions import IN_C, IN_PYTHON, MOST_MIB, QUESTIONS, REPLAYS, ROOT, Question, environment

HISTORY = Path(__file__).with_name("history.json")
BIN = Path(sys.executable).parent
ROUNDS, ENOUGH = 5, 6.0  # runs of a question, and CPU seconds after which they are enough
LIMIT = 180  # CPU seconds after which a process is stopped
MOST_FAILING = 1  # the exit code of what does not fit


def used(command: list[str], replay: str) -> tuple[float, float] | None:
    """CPU seconds and peak MiB of a process and what it started; None if it was stopped."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        os.chdir(ROOT)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.execve(command[0], command, environment(replay))
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        return None
    if os.waitstatus_to_exitcode(status) > MOST_FAILING:
        raise SystemExit(f"it fails, see for yourself: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def bare(replay: str, rounds: int) -> float:
    """The least CPU seconds of Python's start."""
    found = [used([sys.executable, "-c", "pass"], replay) for _ in range(rounds)]
    return min(one[0] for one in found if one)


def measured(question: Question, replay: str) -> tuple[float, float] | None:
    """The ratio and the peak MiB of a question; None if it was stopped."""
    least, seconds, total, mib = bare(replay, ROUNDS), float("inf"), 0.0, 0.0
    for _ in range(ROUNDS):
        found = used([str(BIN / "gpu-mem-calc"), *question.words.split()], replay)
        if found is None:
            return None
        seconds, mib, total = min(seconds, found[0]), max(mib, found[1]), total + found[0]
        least = min(least, bare(replay, 1))
        if total > ENOUGH:
            break
    return seconds / least, mib


def has_library() -> bool:
    """Whether the library of the replay in C was built."""
    from gpu_mem_calculator.pytorch.replay.native_library import library

    return library() is not None


def table(questions: list[Question], replays: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Measure, and print a line for each question and replay."""
    made: dict[str, dict[str, float]] = {}
    print(f"{'ratio':>8} {'aim':>6}  replay   MiB (aim: {MOST_MIB})")
    for question in questions:
        row = made.setdefault(question.words, {})
        for replay in replays:
            found, aim = measured(question, replay), question.aims[replay]
            if found is None:
                print(f"    more {aim:>6,}  {replay:6}     -  {question.words}  MISSED", flush=True)
                continue
            ratio, mib = found
            row[replay] = round(ratio, 1)
            row["mib"] = max(row.get("mib", 0), round(mib))
            missed = "  MISSED" * (ratio > aim or mib > MOST_MIB)
            line = f"{ratio:8,.1f} {aim:>6,}  {replay:6} {mib:5.0f}  {question.words}{missed}"
            print(line, flush=True)
    return made


def main() -> None:
    """Print the table, and store it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="questions with these words")
    parser.add_argument("--replay", choices=REPLAYS, help="one of the two")
    parser.add_argument("--store", metavar="VERSION", help="as a column of the history")
    asked = parser.parse_args()
    replays = (asked.replay,) if asked.replay else REPLAYS
    if IN_C in replays and not has_library():
        print("no library of the replay in C was built (python native/build.py)")
        replays = (IN_PYTHON,)
    made = table([one for one in QUESTIONS if asked.only in one.words], replays)
    if asked.store:
        history = json.loads(HISTORY.read_text("utf-8"))
        column = history.setdefault(asked.store, {})
        for words, row in made.items():
            column.setdefault(words, {}).update(row)
        HISTORY.write_text(json.dumps(history, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
