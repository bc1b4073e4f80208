"""A task of SkyPilot: `run` is a shell script, `resources` says its card (its YAML reference).

Where `accelerators` names several choices, SkyPilot takes one of them. Choices with the same
number of GPUs are one answer for several cards; others have an answer each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ...catalog.machines import machine, named_by
from ...runfile.text.errors import InputError, quoted
from ..reading.card import NamedCard, naming_card, one_of
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.node_memory import NamedMemory, least, skypilot_memory
from ..reading.reading import Reading
from ..reading.tools import read_alone
from ..shell.bounds import Work
from ..shell.read import main_commands, read_script
from ..shell.script import ShellScript
from ..shell.variables import Variables

LABEL = "skypilot accelerators"
CHOICES = ("any_of", "ordered")  # of resources: each is a whole section
MOST_CHOICES = 32


def is_task(data: Any) -> bool:
    """Whether data is a task: a script, and what it runs on."""
    if not isinstance(data, Mapping) or not isinstance(data.get("run"), str):
        return False
    return isinstance(data.get("resources"), Mapping) or "setup" in data or "num_nodes" in data


def read_task(
    data: Mapping[str, Any], files: NamedFiles, options: Mapping[str, Any] | None = None
) -> list[Command]:
    """The commands of a task, for each number of GPUs that its choices have.

    options: keys of `sky launch` that win over those of the file
    """
    for key, value in (options or {}).items():
        old = data.get(key)
        merged = {**old, **value} if isinstance(old, Mapping) and key == "envs" else value
        data = {**data, key: merged}
    nodes = data.get("num_nodes", 1)
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise InputError(f"num_nodes={quoted(nodes)} must be a whole number of nodes")
    resources = data.get("resources") or {}
    if not isinstance(resources, Mapping):
        raise InputError(f"resources={quoted(resources)} must be an object")
    choices: dict[int | None, list[NamedCard]] = {}
    for card in _choices(resources):
        choices.setdefault(card.gpus, []).append(card)
    files = _after_setup(data, files)
    found: list[Command] = []
    for count, cards in (choices or {None: []}).items():
        with naming_card(one_of(cards)):
            commands = _commands(data, files, one_of(cards), count, nodes)
        found += [_chosen(one, cards) for one in commands] if len(choices) > 1 else commands
    return found


def _memory(resources: Mapping[str, Any]) -> NamedMemory | None:
    """The least memory of an instance, of all choices; None where one of them says none."""
    several = next((resources[key] for key in CHOICES if isinstance(resources.get(key), list)), ())
    choices = [{**resources, **one} for one in several if isinstance(one, Mapping)]
    choices = choices or [dict(resources)]
    found = [skypilot_memory(one.get("memory", "")) for one in choices]
    return least(*found) if all(found) else None


def _chosen(command: Command, cards: Sequence[NamedCard]) -> Command:
    """A command with the name of its choice; another choice never runs beside it."""
    said = " or ".join(card.said for card in cards)
    slots = tuple(f"{said} {slot}" for slot in command.slots)
    return replace(command, name=f"{said}: {command.name}", slots=slots)


def _commands(
    data: Mapping[str, Any], files: NamedFiles, card: NamedCard | None, each: int | None, nodes: int
) -> list[Command]:
    """The commands of `run` on a number of GPUs for each node."""
    environment = {**_variables(data, "envs"), **_variables(data, "secrets")}
    environment |= {
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NODE_RANK": "0",
        **({} if each is None else {"SKYPILOT_NUM_GPUS_PER_NODE": str(each)}),
    }
    commands = main_commands(read_script(data["run"], files, (), environment))
    node = _memory(data.get("resources") or {})
    found = [replace(one, node=least(node, one.node)) for one in commands]
    return [_completed(one, card, each, nodes) for one in found]


def _completed(command: Command, card: NamedCard | None, count: int | None, nodes: int) -> Command:
    """The command with its card, and with the task's GPUs where its launcher has none."""
    command = replace(command, card=card or command.card)
    if command.num_gpus is not None or count is None:
        return command
    total = count * nodes
    return replace(command, num_gpus=total, num_nodes=nodes, given_by="resources.accelerators")


def _variables(data: Mapping[str, Any], key: str) -> dict[str, str]:
    section = data.get(key) or {}
    if not isinstance(section, Mapping):
        raise InputError(f"{key}={quoted(section)} must be names and values")
    return {str(name): str(value) for name, value in section.items() if value is not None}


def _after_setup(data: Mapping[str, Any], files: NamedFiles) -> NamedFiles:
    """The files with those that `setup` writes."""
    setup = data.get("setup")
    if not isinstance(setup, str):
        return files
    variables = Variables(_variables(data, "envs"), ())
    script = ShellScript(variables, files, Work(), undecided=False, path="")
    with suppress(InputError):
        script.run_text(setup)
    return replace(files, written={**files.written, **script.written})


def _choices(resources: Mapping[str, Any]) -> Iterator[NamedCard]:
    """The cards of which one is taken; each has the GPUs of a node."""
    for key in CHOICES:
        several = resources.get(key)
        for one in several[:MOST_CHOICES] if isinstance(several, list) else ():
            if isinstance(one, Mapping):
                yield from _choices({**resources, **dict.fromkeys(CHOICES), **one})
        if several:
            return
    accelerators = resources.get("accelerators")
    if accelerators:
        yield from (_card(name, count) for name, count in _accelerators(accelerators))
        return
    kind = resources.get("instance_type")
    if isinstance(kind, str):
        known = machine(kind)
        said = f"instance_type={kind}"
        yield NamedCard(name=known[0], gpus=known[1], said=said) if known else NamedCard(said=said)


def _accelerators(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and counts: `A100:8`, `L4`, a list, `{A100: 8}`, or the set `{A100:8, H100:8}`."""
    if isinstance(value, str):
        name, _, count = value.partition(":")
        yield name.strip(), count.strip() or 1
    elif isinstance(value, Mapping):
        for name, count in list(value.items())[:MOST_CHOICES]:
            yield from _accelerators(str(name)) if count is None else [(str(name), count)]
    elif isinstance(value, list):
        for one in value[:MOST_CHOICES]:
            yield from _accelerators(one)
    else:
        raise InputError(f"resources.accelerators={quoted(value)} must be as in A100:8")


def _card(name: str, count: Any) -> NamedCard:
    said = f"accelerators={name}:{count}"
    try:
        number = float(str(count))
    except ValueError:
        raise InputError(f"resources.{said}: {quoted(count)} must be a number of GPUs") from None
    gpus = int(number) if number >= 1 else 1
    if name.lower().startswith("tpu-"):
        name = name.lower().rpartition("-")[0] if name.count("-") > 1 else name
    size = name.rstrip("+").upper().removesuffix("GB")
    if size.isdecimal() and name.upper().rstrip("+").endswith("GB"):  # any card of a size
        return NamedCard(memory_gb=float(size), at_least=name.endswith("+"), gpus=gpus, said=said)
    return NamedCard(name=named_by(LABEL, name), gpus=gpus, said=said)


def read_data(data: Any, files: NamedFiles) -> Reading:
    """What a task with one command means."""
    return read_alone(read_task(data, files))
