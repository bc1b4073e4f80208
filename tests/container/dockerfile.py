"""Reads a Dockerfile: the instructions that ours uses, and a sentence for any other."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Each instruction and the flags that are understood.
FLAGS: dict[str, set[str]] = {
    "ARG": set(),
    "CMD": set(),
    "COPY": {"from"},
    "ENTRYPOINT": set(),
    "ENV": set(),
    "EXPOSE": set(),
    "FROM": set(),
    "HEALTHCHECK": {"interval", "timeout", "start-period", "retries"},
    "LABEL": set(),
    "RUN": set(),
    "USER": set(),
    "WORKDIR": set(),
}
EXECUTABLE = ("CMD", "ENTRYPOINT")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


class DockerfileError(ValueError):
    """What cannot be read, with its line."""


@dataclass(frozen=True)
class Step:
    """One instruction: where it begins, its name, its flags and the rest of it."""

    line: int
    name: str
    flags: Mapping[str, str]
    text: str

    def words(self) -> list[str]:
        """The rest as words, quotes removed."""
        return shlex.split(self.text)

    def pairs(self, known: Mapping[str, str]) -> dict[str, str]:
        """`NAME=value` words, with variables put in; a name alone has no value."""
        found = {}
        for word in self.words():
            name, _, value = word.partition("=")
            found[name] = expanded(value, known)
        return found

    def command(self) -> list[str]:
        """The words of an exec form."""
        try:
            words = json.loads(self.text)
        except json.JSONDecodeError:
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DockerfileError(
                f"line {self.line}: {self.name} {self.text!r} is not an exec form, "
                'such as ["program", "word"]'
            )
        return words


@dataclass
class Stage:
    """One `FROM`: what it starts from and its steps."""

    name: str
    base: str
    line: int
    steps: list[Step] = field(default_factory=list)

    def sources(self) -> set[str]:
        """What it is made from: its base and the stages that it copies from."""
        return {self.base} | {step.flags["from"] for step in self.steps if "from" in step.flags}


def expanded(text: str, known: Mapping[str, str]) -> str:
    """A text with `$NAME`, `${NAME}` and `${NAME:-default}` put in."""

    def value(match: re.Match[str]) -> str:
        return known.get(match[1] or match[3], "") or match[2] or ""

    return VARIABLE.sub(value, text)


def read(path: Path) -> dict[str, Stage]:
    """The stages of a Dockerfile by name, in order."""
    stages: dict[str, Stage] = {}
    for step in steps(path.read_text(encoding="utf-8")):
        if step.name == "FROM":
            stage = _stage(step, len(stages))
            if stage.name in stages:
                raise DockerfileError(f"line {step.line}: there are two stages {stage.name!r}")
            stages[stage.name] = stage
        elif not stages:
            raise DockerfileError(f"line {step.line}: {step.name} before the first FROM")
        else:
            stages[next(reversed(stages))].steps.append(step)
    return stages


def steps(text: str) -> Iterator[Step]:
    """Each instruction with its line."""
    for line, whole in _logical(text):
        word, _, rest = whole.partition(" ")
        name, rest = word.upper(), rest.strip()
        if name not in FLAGS:
            raise DockerfileError(
                f"line {line}: {name} is not understood; known: {', '.join(FLAGS)}"
            )
        if "<<" in rest and name in ("RUN", "COPY"):
            raise DockerfileError(f"line {line}: a here-document is not understood; use && or ;")
        flags = {}
        while match := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
            if match[1] not in FLAGS[name]:
                raise DockerfileError(f"line {line}: {name} --{match[1]} is not understood")
            flags[match[1]], rest = match[2], rest[match.end() :]
        if rest.startswith("--"):
            raise DockerfileError(f"line {line}: {name} {rest.split()[0]} is not understood")
        yield Step(line, name, flags, rest)


def needed(stages: Mapping[str, Stage], target: str) -> list[Stage]:
    """The stages that a target is made of, in order."""
    if target not in stages:
        raise DockerfileError(f"{target!r} is not a stage; there are {', '.join(stages)}")
    wanted, found = {target}, []
    for stage in reversed(list(stages.values())):
        if stage.name in wanted:
            wanted |= stage.sources()
            found.append(stage)
    return found[::-1]


def _stage(step: Step, count: int) -> Stage:
    words = step.words()
    if len(words) == 3 and words[1].upper() == "AS":
        return Stage(words[2], words[0], step.line)
    if len(words) == 1:
        return Stage(str(count), words[0], step.line)
    raise DockerfileError(f"line {step.line}: FROM {step.text!r} is not `image` or `image AS name`")


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations; a comment in between does not end one."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not parts and not line.strip()):
            continue
        begun = begun if parts else number
        if line.rstrip().endswith("\\"):
            parts.append(line.rstrip()[:-1])
            continue
        yield begun, "".join([*parts, line]).strip()
        parts = []
    if parts:
        raise DockerfileError(f"line {begun}: the last line ends in \\")
