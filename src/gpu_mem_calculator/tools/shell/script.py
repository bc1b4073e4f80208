"""Walks through a shell script and collects the commands that it would start.

Nothing is started. A condition that is not known is taken as false, or as true where the script
would start nothing otherwise. `exit` under a condition ends only what is under the condition: it
is there for somebody who starts the script in a wrong way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..reading.command import Command
from ..reading.named_files import NamedFiles
from .arithmetic import assignment
from .bounds import WORK_OF_COMMAND, WORK_OF_TOKEN, Work, check_depth, check_size
from .expansion import Expansion
from .nodes import (
    Arithmetic,
    Background,
    Case,
    For,
    Function,
    If,
    Joined,
    Not,
    ShellGroup,
    Simple,
    While,
)
from .simple import LeaveError, run_simple
from .tree import parse
from .variables import Variables, is_known

MOST_TURNS = 1000  # of a loop


class Started(Struct):
    """A command that the script would start: its words, environment, folder and files.

    - `outer`: the launcher around it, as in `srun bash -c '...'`
    - `background`: whether the script goes on while it runs; `waits`: how often the script has
      waited for such commands or ended them before
    - `unknown`: variables in front of it whose values are not known
    """

    words: list[str]
    outer: Command
    environment: dict[str, str]
    folder: Path | None
    written: Mapping[str, str]
    background: bool
    waits: int
    unknown: tuple[str, ...]


class ShellScript:
    """The state of a script while it is read.

    - `undecided`: how conditions are taken that are not known
    - `path`: of the script, as `$0` has it
    """

    def __init__(
        self, variables: Variables, files: NamedFiles, work: Work, *, undecided: bool, path: str
    ) -> None:
        self.files, self.work, self.undecided = files, work, undecided
        self.folder = files.folder
        self.expansion = Expansion(variables, work, os.path.dirname(path) or ".")
        self.functions: dict[str, list[Any]] = {}
        self.started: list[Started] = []
        self.written: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.outer = Command(words=())
        self.depth = self.background = self.waits = 0

    def run_text(self, text: str) -> None:
        """Read the commands of a text: a script, or what eval or `bash -c` gets."""
        check_size(text)
        with suppress(LeaveError):
            self.run(parse(text, self.work, self.depth))

    def run(self, body: list[Any]) -> bool | None:
        """Read commands; whether the last one succeeds, where that is known."""
        self.depth += 1
        check_depth(self.depth)
        result: bool | None = True
        try:
            for node in body:
                self.work.spend(WORK_OF_COMMAND)
                result = KINDS[type(node)](self, node)
        finally:
            self.depth -= 1
        return result

    def start(self, words: list[str], environment: Mapping[str, str]) -> None:
        """Note a command that would be started."""
        variables = self.expansion.variables
        sizes = (*map(len, words), len(variables.exported), len(self.written), WORK_OF_TOKEN)
        self.work.spend(WORK_OF_TOKEN * sum(sizes))
        known = {name: value for name, value in environment.items() if is_known(value)}
        self.started.append(
            Started(
                words=words,
                outer=self.outer,
                environment={**variables.environment(), **known},
                folder=self.folder,
                written=dict(self.written),
                background=self.background > 0,
                waits=self.waits,
                unknown=tuple(name for name in environment if name not in known),
            )
        )

    def note(self, sentence: str) -> None:
        """Note what was assumed."""
        self.notes[sentence] = None


def _under_condition(script: ShellScript, body: list[Any]) -> bool | None:
    """Read commands that run under a condition; exit ends only them."""
    try:
        return script.run(body)
    except LeaveError as leave:
        if leave.kind != "exit":
            raise
        return None


def _decided(script: ShellScript, condition: list[Any], what: str) -> bool:
    result = script.run(condition)
    if result is None:
        taken = "true" if script.undecided else "false"
        script.note(f"a condition of the script ({what}) is not known; it is taken as {taken}")
        return script.undecided
    return result


def _if(script: ShellScript, node: If) -> bool | None:
    for condition, body in node.branches:
        if _decided(script, condition, _shown(condition)):
            return _under_condition(script, body)
    return _under_condition(script, node.otherwise)


def _shown(condition: list[Any]) -> str:
    words = condition[0].words if condition and isinstance(condition[0], Simple) else ["..."]
    text = " ".join(words)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _joined(script: ShellScript, node: Joined) -> bool | None:
    result = KINDS[type(node.first)](script, node.first)
    for operator, command in node.rest:
        if _goes_on(operator, result, node.first):
            result = _under_condition(script, [command])
    return result


def _goes_on(operator: str, result: bool | None, before: Any) -> bool:
    """Whether the next of joined commands runs; a command that is not a test succeeds."""
    if operator == "|":
        return True
    if result is None:
        return operator == "&&" and not _is_test(before)
    return result is (operator == "&&")


def _is_test(node: Any) -> bool:
    return isinstance(node, Simple) and node.words[:1] in (["["], ["[["], ["test"])


def _for(script: ShellScript, node: For) -> bool | None:
    variables = script.expansion.variables
    if node.words is None:
        values = list(variables.arguments)
    else:
        values = [one for word in node.words for one in script.expansion.words(word)]
    for value in values[:MOST_TURNS]:
        variables.set(node.name, value)
        if _leaves_loop(script, node.body):
            break
    return None


def _while(script: ShellScript, node: While) -> bool | None:
    for _ in range(MOST_TURNS):
        before = len(script.started)
        result = script.run(node.condition)
        if result is None or result is node.until or _leaves_loop(script, node.body):
            break
        if len(script.started) > before:  # one turn shows what the loop starts
            break
    return None


def _leaves_loop(script: ShellScript, body: list[Any]) -> bool:
    try:
        script.run(body)
    except LeaveError as leave:
        if leave.kind in ("break", "exit"):
            return True
        if leave.kind != "continue":
            raise
    return False


def _case(script: ShellScript, node: Case) -> bool | None:
    word = script.expansion.text(node.word)
    for patterns, body in node.branches:
        texts = [script.expansion.text(pattern) for pattern in patterns]
        if is_known(word) and any(fnmatchcase(word, text) for text in texts):
            return _under_condition(script, body)
    if not is_known(word):
        script.note(f"the script's case {word} is not known; none of its branches is taken")
    return None


def _group(script: ShellScript, node: ShellGroup) -> bool | None:
    if not node.subshell:
        return script.run(node.body)
    variables, folder = script.expansion.variables, script.folder
    script.expansion.variables = variables.copy()
    result = _under_condition(script, node.body)
    script.expansion.variables, script.folder = variables, folder
    return result


def _function(script: ShellScript, node: Function) -> bool | None:
    script.functions[node.name] = node.body
    return True


def _background(script: ShellScript, node: Background) -> bool | None:
    script.background += 1
    try:
        _under_condition(script, [node.body])
    finally:
        script.background -= 1
    return True


def _not(script: ShellScript, node: Not) -> bool | None:
    result = script.run([node.body])
    return None if result is None else not result


def _arithmetic(script: ShellScript, node: Arithmetic) -> bool | None:
    change = assignment(node.text)
    number = script.expansion.number(change[1] if change else node.text)
    if change:
        unknown = f"$(({''.join(change[1].split())}))"
        script.expansion.variables.set(change[0], unknown if number is None else str(number))
        return True
    return None if number is None else bool(number)


KINDS: Mapping[type, Callable[[ShellScript, Any], bool | None]] = {
    Simple: run_simple,
    Joined: _joined,
    If: _if,
    For: _for,
    While: _while,
    Case: _case,
    ShellGroup: _group,
    Function: _function,
    Not: _not,
    Arithmetic: _arithmetic,
    Background: _background,
}
