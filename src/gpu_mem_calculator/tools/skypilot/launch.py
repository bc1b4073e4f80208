"""`sky launch TASK.yaml`: the file of a task, and the options that win over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...runfile.text.errors import InputError
from ..launchers.launcher_options import split_options

PROGRAM = "sky"
STARTS = ("launch", "exec", "up", "update")  # also behind jobs and serve
YAML = (".yaml", ".yml")


def task_file(words: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """The file that a command starts as a task, and the keys that its options set; None where it is
    another command.
    """
    if words[0].rpartition("/")[2] != PROGRAM or not set(words[1:3]) & set(STARTS):
        return None
    rest = list(words[1:])
    while rest and rest.pop(0) not in STARTS:
        pass
    given: dict[str, list[str]] = {}
    names: list[str] = []
    while rest:
        options = split_options(PROGRAM, rest)
        for name, values in options.given.items():
            given.setdefault(name, []).extend(values)
        names += options.rest[:1]
        rest = list(options.rest[1:])
    found = [name for name in names if name.endswith(YAML)]
    if not found:
        raise InputError("sky names no file of a task; add it, such as sky launch task.yaml")
    return found[-1], _keys(given)


def _keys(given: dict[str, list[str]]) -> dict[str, Any]:
    """The keys of a task that options set."""
    keys: dict[str, Any] = {}
    if "gpus" in given:
        keys["resources"] = {"accelerators": given["gpus"][-1]}
    elif "instance_type" in given:
        keys["resources"] = {"instance_type": given["instance_type"][-1]}
    if "num_nodes" in given:
        text = given["num_nodes"][-1]
        keys["num_nodes"] = int(text) if text.isdecimal() and len(text) < 6 else text
    pairs = (one.partition("=") for one in given.get("env", ()))
    variables = {name: value for name, sign, value in pairs if sign}
    return {**keys, **({"envs": variables} if variables else {})}
