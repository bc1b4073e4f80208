"""The commands that a shell script would start, and those that train or serve; and what its lines
for Slurm ask for: nodes, GPUs and the card (sbatch's manual).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..launchers.launch import VISIBLE, read_launch
from ..launchers.slurm_cards import slurm_card
from ..reading.card import NamedCard, naming_card
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.node_memory import NamedMemory, least, slurm_memory
from ..reading.reading import Limit
from ..reading.tools import FORMATS, UnknownToolError, command_format
from ..translation.arguments import tables
from .bounds import Work, check_size
from .script import ShellScript, Started
from .tokens import with_windows_paths
from .variables import Variables

LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
OPTION = re.compile(r"(--[\w-]+|-[A-Za-z])(?:[ =]*(\"[^\"]*\"|'[^']*'|[^\s#]+))?")
SHORT: dict[str, str] = tables(__file__)["short"]
VARIABLES: dict[str, list[str]] = tables(__file__)["variables"]  # that Slurm sets
MOST_LINES = 200
# Prompts of a session that was pasted; `> ` alone is a redirection.
PROMPT = re.compile(r"^[ \t]*[$%] (?=\S)", re.MULTILINE)
PROMPTS = re.compile(r"^[ \t]*[$>%] (?=\S)", re.MULTILINE)
# Scripts in Python that prepare or look at something beside the one that trains.
BESIDE = re.compile("|".join(tables(__file__)["beside"]))
PROGRAM = re.compile(r"(.*\.py|-m|vllm|launch)")  # in commands that start a tool
SBATCH_LINES = "#SBATCH"
BUILT_IN = ("conda", "pip", "pip3", "uv", "git", "curl", "hf", "huggingface-cli", "export")
MOST_SEEN = 3
STEP = "srun"  # starts a step of a job
LAUNCHED = 1  # rank of a script behind a launcher, which trains
MOST_COMMANDS, MOST_NAMED = 32, 70
ANY_SCRIPT = "huggingface"  # its row in FORMATS takes any script in Python


class Allocation(Struct, frozen=True):
    """What a script asks Slurm for; None where it does not say it."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    gpus: int | None = None
    card: NamedCard | None = None
    node: NamedMemory | None = None

    @property
    def num_gpus(self) -> int | None:
        """The GPUs of all nodes."""
        if self.gpus is not None or self.gpus_per_node is None:
            return self.gpus
        return (self.nodes or 1) * self.gpus_per_node

    def environment(self) -> dict[str, str]:
        """The variables that Slurm sets."""
        tasks = self.tasks_per_node
        said = {
            "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
            "tasks_per_node": tasks,
            "tasks": None if tasks is None else (self.nodes or 1) * tasks,
        }
        known = {kind: str(value) for kind, value in said.items() if value is not None}
        return {name: text for kind, text in known.items() for name in VARIABLES[kind]}


def read_allocation(text: str) -> Allocation:
    """The nodes and GPUs in the script's #SBATCH lines."""
    given: dict[str, str] = {}
    for line in LINE.findall(text)[:MOST_LINES]:
        for name, value in OPTION.findall(line):
            given[SHORT.get(name, name)] = value.strip("\"'")
    nodes = _count(given.get("--nodes"))
    each = _gpus(given.get("--gpus-per-node")) or _gres(given.get("--gres", ""))
    tasks = _count(given.get("--ntasks-per-node"))
    gpus = _gpus(given.get("--gpus"))
    per_task, all_tasks = _gpus(given.get("--gpus-per-task")), _count(given.get("--ntasks"))
    if per_task and not (each or gpus):
        each = per_task * tasks if tasks else None
        gpus = per_task * all_tasks if all_tasks and not tasks else None
    on_node = each or (gpus if nodes in (None, 1) else None)
    node = slurm_memory(given, on_node, tasks or all_tasks if nodes in (None, 1) else tasks)
    return Allocation(nodes, each, tasks, gpus, slurm_card(given), node)


def _count(text: str | None) -> int | None:
    """A number: `4`, the first of `2-4`, the last part of `a100:8`."""
    found = re.fullmatch(r"(?:[\w.-]*:)?(\d{1,6})(?:-\d+)?", text or "")
    return int(found[1]) if found and int(found[1]) > 0 else None


def _gpus(text: str | None) -> int | None:
    """The number of `[TYPE:]COUNT`; a type alone is one GPU."""
    alone = re.fullmatch(r"[\w.-]*[A-Za-z][\w.-]*", text or "")
    return 1 if alone else _count(text)


def _gres(text: str) -> int | None:
    """The number of `gpu[:TYPE][:COUNT]`; a number that no node has is a type, such as 4090."""
    found = re.search(r"\bgpu(?::[\w.-]*[A-Za-z_][\w.-]*|:\d{3,})?(?::(\d{1,2}))?(?![\w:])", text)
    return int(found[1] or 1) if found else None


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
    text = with_windows_paths(text.replace("\r\n", "\n"))
    text = PROMPTS.sub("", text) if PROMPT.search(text) else text
    allocation = read_allocation(text)
    variables = {**allocation.environment(), **(environment or {})}
    problem, work = None, Work()
    for undecided in (False, True):
        known = Variables(variables, arguments)
        script = ShellScript(known, files, work, undecided=undecided, path=path)
        script.run_text(text)
        commands, problem = _commands(script, files)
        if commands:
            notes, unsaid = tuple(script.notes), _unsaid(known)
            return [replace(_completed(one, allocation, notes), unsaid=unsaid) for one in commands]
    seen = [" ".join(one.words[:3]) for one in script.started if one.words[0] not in BUILT_IN]
    names = ", ".join(dict.fromkeys(seen[:MOST_SEEN]))
    saw = f" ({names})" if names else ""
    with naming_card(allocation.card):
        raise problem or UnknownToolError(
            f"the shell script starts no tool that is known{saw}; check its command instead, "
            "or give what it printed to gpu-mem-calc diagnose"
        )


def _unsaid(variables: Variables) -> str:
    """A sentence on the words that the script uses and that do not stand after its name."""
    if not variables.asked:
        return ""
    places = [f"${place}" for place in sorted(variables.asked)]
    named = f"{places[0]} to {places[-1]}" if len(places) > 1 else places[0]
    given = f"{len(variables.arguments)} stand there" if variables.arguments else "none is given"
    return f"the script uses {named}, words after its name, and {given}; write them there"


def _commands(script: ShellScript, files: NamedFiles) -> tuple[list[Command], InputError | None]:
    """The commands of known tools, and the first problem with another one."""
    found: list[tuple[Command, Started]] = []
    problem: InputError | None = None
    for one in script.started:
        try:
            command = _command(one, files)
        except InputError as error:
            if any(PROGRAM.fullmatch(word) for word in one.words):
                problem = problem or error
            continue
        if command_format(command) is not None:
            found.append((command, one))
    return _with_slots(found), problem


def _with_slots(found: Sequence[tuple[Command, Started]]) -> list[Command]:
    """The commands with slots, where some run at the same time.

    Commands in the background run together until the script waits, and together with each later
    one in the foreground. Steps that srun starts have GPUs of their own.
    """
    shared = [
        (number, one.waits, one.background or command.detached)
        for number, (command, one) in enumerate(found)
        if one.words[0] != STEP or "--overlap" in one.words
    ]
    slots: dict[int, list[str]] = {}
    for number, waits, background in shared:
        if background:
            later = [one for one, then, behind in shared if then == waits and not behind]
            own = [f"{waits}.{one}" for one in later if one > number]
            slots[number] = [f"{waits}", *own]
        else:
            slots[number] = [f"{waits}.{number}"]
    counts = Counter(slot for own in slots.values() for slot in own)
    return [
        _named(command, one, tuple(slot for slot in slots.get(number, ()) if counts[slot] > 1))
        for number, (command, one) in enumerate(found)
    ]


def _named(command: Command, started: Started, slots: tuple[str, ...]) -> Command:
    """A command with its slots and its name; which GPUs it uses may not be known."""
    limits = command.limits
    if slots and set(started.unknown) & set(VISIBLE):
        why = "which GPU it uses is not known, so it is not added to what runs beside it"
        limits, slots = (*limits, Limit(key=f"{VISIBLE[0]}", why=why)), ()
    text = " ".join(command.words)
    name = text if len(text) <= MOST_NAMED else f"{text[: MOST_NAMED - 3]}..."
    return replace(command, name=name, slots=slots, limits=limits)


def _command(started: Started, files: NamedFiles) -> Command:
    written = {**files.written, **started.written}
    own = replace(files, folder=started.folder, written=written)
    command = read_launch(started.words, own, started.environment)
    if command.num_gpus is None and started.outer.num_gpus is not None:
        outer = started.outer
        command = replace(command, num_gpus=outer.num_gpus, num_nodes=outer.num_nodes)
    card, node = command.card or started.outer.card, least(command.node, started.outer.node)
    return replace(command, card=card, node=node)


def _completed(command: Command, allocation: Allocation, notes: tuple[str, ...]) -> Command:
    """The command with Slurm's counts, where its launcher has none, and with what was assumed."""
    card, assumed = command.card or allocation.card, (*notes, *command.assumed)
    node, count = least(command.node, allocation.node), allocation.num_gpus
    command = replace(command, assumed=assumed, card=card, node=node)
    if command.num_gpus is not None or count is None:
        return command
    nodes = allocation.nodes or command.num_nodes
    return replace(command, num_gpus=count, num_nodes=nodes, given_by=SBATCH_LINES)


def main_commands(commands: Sequence[Command]) -> list[Command]:
    """The commands that train or serve: those of tools, else scripts that do not look like a
    preparation. One that is repeated later is there once.
    """
    ranks = [_rank(one) for one in commands]
    most = max(min(ranks), LAUNCHED)
    found: list[Command] = []
    for one, rank in zip(commands, ranks, strict=True):
        again = any(known.words == one.words for known in found) and not one.slots
        if rank <= most and not again:
            found.append(one)
    if len(found) > MOST_COMMANDS:
        key = f"{len(found) - MOST_COMMANDS} more commands of the script"
        more = Limit(key=key, why="are not checked")
        found[0] = replace(found[0], limits=(*found[0].limits, more))
    return found[:MOST_COMMANDS]


def main_command(commands: Sequence[Command]) -> Command:
    """The first command that trains or serves, where only one can be used."""
    found = main_commands(commands)
    best = min(found, key=_rank)
    if len(found) < 2:
        return best
    sentence = f"the script starts {len(found)} such commands; this is the first of them"
    return replace(best, assumed=(*best.assumed, sentence))


def _rank(command: Command) -> int:
    """0 a tool, 1 a script behind a launcher, 2 another script, 3 what looks like a preparation."""
    if command_format(command) is not FORMATS[ANY_SCRIPT] or command.program == "trl":
        return 3 if BESIDE.search(" ".join(command.words[1:2])) else 0
    beside = bool(BESIDE.search(command.program))
    return 3 if beside else 1 if command.launcher else 2
