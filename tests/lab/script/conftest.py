"""Scripts that run in the tests' own process, which is faster than one for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from gpu_mem_calculator.lab.script.launch import read_launch
from gpu_mem_calculator.lab.script.recording import Failure, Recording
from gpu_mem_calculator.lab.script.run import plan_of, script_run_file
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read

EXAMPLES = Path(__file__).parent / "examples"


class StepsDone(BaseException):
    """Ends a script where the process would end."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording


def outcome(words: str, shapes: dict[str, int | str] | None = None) -> Recording | Failure:
    """What the script of a command hands back after two steps; {} is the folder of examples."""
    from gpu_mem_calculator.lab.script.child import traced

    def finish(recording: Recording) -> NoReturn:
        raise StepsDone(recording)

    launch = read_launch(words.format(EXAMPLES).split())
    resolved = resolve(read(script_run_file(launch, {"hardware": {"gpu": "h200"}})).file)
    plan = plan_of(launch, resolved, 2, shapes or {}, "")
    try:
        return traced(plan, finish)
    except StepsDone as done:
        return done.recording


def recorded(words: str, **shapes: Any) -> Recording:
    """The recording of a script that trains."""
    result = outcome(words, shapes)
    assert isinstance(result, Recording), result
    return result


def refused(words: str, **shapes: Any) -> Failure:
    """The failure of a script that does not."""
    result = outcome(words, shapes)
    assert isinstance(result, Failure), result
    return result
