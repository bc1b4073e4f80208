"""The commands that a shell script would start, and the one that trains or serves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...core.errors import InputError
from ..launchers.launch import read_launch
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.tools import FORMATS, command_format
from .bounds import Work, check_size
from .sbatch import Allocation, read_allocation
from .script import ShellScript, Started
from .variables import Variables

PROMPT = re.compile(r"^[ \t]*[$>%] (?=\S)", re.MULTILINE)
# Scripts in Python that prepare or look at something beside the one that trains.
BESIDE = re.compile(
    r"(pre_?process|prepare|convert|download|eval|infer|generat|merge|export|bench|test|token|plot"
    r"|setup|client|collect|report|rollout|deploy)"
)
PROGRAM = re.compile(r"(.*\.py|-m|vllm|launch)")  # in commands that start a tool
ANY_SCRIPT = "huggingface"  # its row in FORMATS takes any script in Python


def read_script(
    text: str,
    files: NamedFiles,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    path: str = "",
) -> list[Command]:
    """The commands of tools that a shell script would start, in order. Nothing is started.

    - text: a script for bash, sh or sbatch, or a command with line continuations
    - arguments: those of the script; without them `$1` is not known
    - environment: variables that are set before
    - path: of the script; files beside it are found by it
    """
    check_size(text)
    text = PROMPT.sub("", text.replace("\r\n", "\n"))
    allocation = read_allocation(text)
    variables = {**allocation.environment(), **(environment or {})}
    problem, work = None, Work()
    for undecided in (False, True):
        script = ShellScript(
            Variables(variables, arguments), files, work, undecided=undecided, path=path
        )
        script.run_text(text)
        commands, problem = _commands(script, files)
        if commands:
            notes = tuple(script.notes)
            return [_completed(one, allocation, notes) for one in commands]
    raise problem or InputError(
        "the shell script starts no tool that is known; check its command instead"
    )


def _commands(script: ShellScript, files: NamedFiles) -> tuple[list[Command], InputError | None]:
    """The commands of known tools, and the first problem with another one."""
    found: list[Command] = []
    problem: InputError | None = None
    for one in script.started:
        try:
            command = _command(one, files)
        except InputError as error:
            if any(PROGRAM.fullmatch(word) for word in one.words):
                problem = problem or error
            continue
        if command_format(command) is not None:
            found.append(command)
    return found, problem


def _command(started: Started, files: NamedFiles) -> Command:
    written = {**files.written, **started.written}
    own = NamedFiles(folder=started.folder, written=written)
    command = read_launch(started.words, own, started.environment)
    if command.num_gpus is None and started.outer.num_gpus is not None:
        outer = started.outer
        return replace(command, num_gpus=outer.num_gpus, num_nodes=outer.num_nodes)
    return command


def _completed(command: Command, allocation: Allocation, notes: tuple[str, ...]) -> Command:
    """The command with Slurm's counts, where its launcher has none, and with what was assumed."""
    command = replace(command, assumed=(*notes, *command.assumed))
    if command.num_gpus is None and allocation.num_gpus is not None:
        nodes = allocation.nodes or command.num_nodes
        return replace(command, num_gpus=allocation.num_gpus, num_nodes=nodes)
    return command


def main_command(commands: Sequence[Command]) -> Command:
    """The command that trains or serves: the first of a tool, else the first script that does
    not look like a preparation.
    """
    ranked = sorted(commands, key=_rank)
    best = ranked[0]
    others = [one for one in ranked[1:] if _rank(one) == _rank(best) and one.words != best.words]
    if not others:
        return best
    sentence = f"the script starts {len(others) + 1} such commands; this is the first of them"
    return replace(best, assumed=(*best.assumed, sentence))


def _rank(command: Command) -> int:
    if command_format(command) is not FORMATS[ANY_SCRIPT] or command.program == "trl":
        return 3 if BESIDE.search(" ".join(command.words[1:2])) else 0
    beside = bool(BESIDE.search(command.program))
    return 3 if beside else 1 if command.launcher else 2
