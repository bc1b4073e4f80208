"""Programs as users start them: the real trainer of transformers, TRL or Lightning.

`train(job)` runs the program of a run file for the world's number of steps.
"""

from __future__ import annotations

from collections.abc import Callable

from ...runfile.text.errors import InputError
from ...tools.translation.tools import start_problems
from .job import Job
from .program_launch import launch
from .program_lightning import train_lightning
from .program_trainer import train_trainer
from .program_trl import train_trl

# The first part of a tool's name, and what runs it.
RUNNERS: dict[str, Callable[[Job], None]] = {
    "transformers": train_trainer,
    "trl": train_trl,
    "lightning": train_lightning,
}


def train(job: Job) -> None:
    """Run a program to the end of its last step; marks the end of start-up and of every step."""
    assert job.file.program is not None
    problems = list(start_problems(job.file.program.tool))
    if problems:
        raise InputError(problems)
    launch(job)
    RUNNERS[job.file.program.tool.partition(".")[0]](job)
