"""Draws the questions of a seed: the same ones every time."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.questions import command_lines, launch_commands, run_files
from tests.questions.question import REST, RUN, Question

RUNS = {"training": run_files.training, "serving": run_files.serving, "program": run_files.program}
RUN_WEIGHTS = (18, 12, 8)
TASKS = ("calculate", "infer", "validate", "explain", "what-ifs", "room", "look")
RUN_SHARE, REST_SHARE, CHECK_SHARE = 0.42, 0.04, 0.24  # the rest are other commands


def drawn(seed: int, count: int, replay: float) -> Iterator[Question]:
    """The questions of a seed; `replay` is the share of run files whose allocator is replayed."""
    for index in range(count):
        yield question(Random(f"{seed}/{index}"), replay)


def question(rng: Random, replay: float) -> Question:
    """One question of any kind."""
    kind = rng.random()
    if kind < RUN_SHARE + REST_SHARE:
        name = rng.choices(tuple(RUNS), RUN_WEIGHTS)[0]
        run, replayed, more = RUNS[name](rng), rng.random() < replay, rng.random() < 0.05
        if kind < REST_SHARE:
            task = rng.choice(TASKS)
            return Question(kind=REST, name=f"REST {task}", run=run, words=(task,))
        return Question(kind=RUN, name=f"Python, {name}", run=run, replay=replayed, more=more)
    if kind < RUN_SHARE + REST_SHARE + CHECK_SHARE:
        return launch_commands.check(rng)
    draws = command_lines.DRAWS
    return rng.choices(tuple(draws), tuple(draws.values()))[0](rng)
