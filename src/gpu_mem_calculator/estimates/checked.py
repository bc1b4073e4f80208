"""The answer for each command of what is asked: whether it fits; and what those on one GPU take
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from ..ledger.shown import Shown
from ..run.limits import Limit
from ..runfile.config import GPUConfig
from ..runfile.read import with_settings
from ..runfile.resolve.hardware import find_hardware
from ..runfile.text.errors import InputError
from ..serving import server_row, spellings
from ..tools.read import Asked, Door, read_all
from ..tools.reading.command import VISIBLE
from ..tools.reading.node_memory import NODE_KEYS, least_section
from ..tools.reading.reading import RUN_FILE, Reading
from ..tools.reading.tools import CARD_KEYS, UnknownToolError
from ..tools.translation.tools import TOOLS
from .busy import BusyCards, busy_data, busy_lines, other_card_words, unlike_words
from .calculator import Estimate, full_estimate, verdict, with_other_cards
from .fit_verdict import EXIT_CODES, FITS, SHORT, UNSURE, WORDS
from .memory_result import with_limits
from .result import MemoryResult
from .verdict_words import total_bytes, verdict_line

if TYPE_CHECKING:
    from ..tools.logs.nvidia_smi import SmiCard
    from ..tools.read import Anything
    from ..tools.releases.named import KnownReleases, Named
    from ..tools.releases.release import Release

DOES_NOT_FIT, CANNOT_TELL, BAD_INPUT = EXIT_CODES[SHORT], EXIT_CODES[UNSURE], 2
USED = "used_memory_bytes"
NO_MODEL = "nothing that was read names the model; add --set model.name=owner/model"
CARD = Limit(
    key="the card", why="nothing names it", settle="--gpu NAME, such as --gpu h100; see gpus"
)


class CheckQuestion(Struct, frozen=True, kw_only=True):
    """What is asked beside the command.

    - `hardware`: the section that is given; `machine`: that of the machine, for what neither it nor
      the command says
    - `busy`: the cards of the machine as they are; `pasted`: they were given with the question
    - `settings`: `section.key=value`; `files`: texts of files that a command names, by their names
    - `named`: the releases that are named; `here`: those that were found where the command would
      run, with a sentence in `unread` for what could not be read
    """

    hardware: Mapping[str, Any] = {}
    machine: Mapping[str, Any] = {}
    busy: BusyCards = BusyCards()
    pasted: bool = False
    settings: Sequence[str] = ()
    files: Mapping[str, str] = {}
    named: Named | None = None
    here: Sequence[Release] = ()
    unread: Sequence[str] = ()

    def door(self, folder: str | None) -> Door:
        """What a command is read with; `folder` is where the files are that it names."""
        given, machine = _gpu_bytes(self.hardware), _gpu_bytes(self.machine)
        given_sizes = {k: v for k, v in self.hardware.items() if k not in CARD_KEYS}
        sizes = [f"hardware.{key}={value}" for key, value in given_sizes.items()]
        return Door(
            folder=folder,
            files=self.files,
            gpu_bytes=given,
            machine_bytes=machine,
            releases=self._known(),
            options=lambda _: ((*sizes, *self.settings), ()),
        )

    def is_here(self, reading: Reading) -> bool:
        """Whether a command would run on the machine: neither an option nor it names a card."""
        own = (reading.run.get("hardware") or {}).keys() & CARD_KEYS
        return not (own or reading.card or self.hardware.keys() & CARD_KEYS)

    def sees_cards(self, reading: Reading) -> bool:
        """Whether the cards of `busy` are those that a command would use."""
        return bool(self.busy.cards) and (self.pasted or self.is_here(reading))

    def _known(self) -> KnownReleases | None:
        """The releases that are named or were found."""
        if self.named is None:
            return None
        from ..tools.releases.named import KnownReleases

        return KnownReleases(self.named, tuple(self.here))


class Checked(Shown, Struct, frozen=True, kw_only=True):
    """The answer for one command.

    - `code`: its exit code; `problems`: why it has no estimate
    - `result`: its estimate, and `gpus_per_node` of it
    - `data`: its report; `lines`: the same for a screen, where there is one
    - `estimate`: what its lines are made of
    - `cards`: those that it would use, where they are known as they are
    - `would_fit`: whether it would fit if nothing else used them; `free`: as many others that
      nothing uses
    """

    reading: Reading
    code: int
    data: Mapping[str, Any]
    lines: Sequence[Any] = ()
    problems: tuple[str, ...] = ()
    result: MemoryResult | None = None
    estimate: Estimate | None = None
    gpus_per_node: int = 1
    cards: Sequence[SmiCard] = ()
    would_fit: bool = False
    free: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The verdict in one line, or why there is none."""
        return verdict_line(self.result) if self.result is not None else "; ".join(self.problems)

    @property
    def busy(self) -> list[str]:
        """What kinds its cards are of, and who holds what of them, a sentence each."""
        if not self.cards:
            return []
        unlike = unlike_words(self.cards)
        kinds = [f"{unlike}; each is counted as the smallest"] if unlike else []
        other = other_card_words(self.cards, self.data["run"]["hardware"].get("gpu"))
        found = [*kinds, *filter(None, [other]), *busy_lines(self.cards)]
        if not self.would_fit:
            return found
        named = f"; use {VISIBLE}={','.join(self.free)}" if self.free else ""
        return [*found, f"it would fit on cards that nobody uses{named}"]

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs of its machine that it uses."""
        named = self.reading.devices[: self.gpus_per_node]
        return named or tuple(map(str, range(self.gpus_per_node)))

    @property
    def takes(self) -> int:
        """Bytes that it takes of each: a server its share, training what it must have."""
        assert self.result is not None
        served = self.result.serving is not None and self.result.device_bytes is not None
        return int(self.result.device_bytes or 0) if served else total_bytes(self.result)


def asked_readings(source: Anything, question: CheckQuestion, folder: str | None) -> list[Reading]:
    """What is to be checked; raises where nothing can be read of it."""
    found = read_all(source, question.door(folder))
    readings = [one.reading or Reading(tool=RUN_FILE, run=one.run) for one in found]
    if len(readings) == 1 and readings[0].problems:
        raise InputError(readings[0].problems)
    return readings


def check_reading(reading: Reading, question: CheckQuestion) -> Checked:
    """The answer for one reading."""
    if reading.problems:
        problems = tuple(reading.problems)
        said = {"problems": reading.problems}
        return Checked(reading=reading, code=BAD_INPUT, data=said, problems=problems)
    reading = _settled(reading, question.settings)
    hardware = _of_run(reading, question)
    run = {**reading.run_file, "hardware": hardware}
    data = with_settings(run, question.settings)
    if question.named is not None:
        # most runs name no release
        from ..tools.releases.apply import with_names_at_release, with_releases

        data = with_releases(data, question.named, question.here)
        data = with_names_at_release(data, reading.written)
    tool = TOOLS.get((data.get("program") or {}).get("tool", ""))
    if not data.get("model") and (tool is None or not tool.own_model):
        return _cannot_tell(reading, [NO_MODEL])
    try:
        server = data.get("inference") or {}
        other = server.get("engine_version") or (server and data.get("releases"))
        assumed = reading.assumed_at_a_release if other else reading.assumed
        data, unused = _used_gpus(reading, data)
        notes = (*assumed, *question.unread)
        estimate, data, cards = _beside_others(data, notes, reading, question)
    except InputError as error:
        return _cannot_tell(reading, error.problems)
    result = replace(estimate.result, decisive=[*unused, *estimate.result.decisive])
    if not estimate.resolved.hardware.named:
        result = with_limits(result, [_no_card(reading)])
    code = EXIT_CODES[result.verdict]
    shown = _data(reading, code, data, result)
    return Checked(
        reading=reading,
        code=code,
        data={**shown, "cards": busy_data(cards)} if cards else shown,
        result=result,
        estimate=replace(estimate, result=result, asked=Asked(run=data, reading=reading)),
        gpus_per_node=estimate.resolved.hardware.gpus_per_node,
        cards=cards,
        would_fit=result.verdict != FITS and result.held_bytes > 0 and _fits_alone(data),
        free=question.busy.free(len(cards)),
    )


def _beside_others(
    data: dict[str, Any], notes: tuple[str, ...], reading: Reading, question: CheckQuestion
) -> tuple[Estimate, dict[str, Any], list[SmiCard]]:
    """The estimate with what others hold of the cards that it would use; its run, and the cards.

    How many it uses is known when it is resolved; of them the one with least free counts.
    """
    estimate = full_estimate(Asked(run=data, notes=notes))
    if not question.sees_cards(reading):
        return with_other_cards(estimate), data, []
    count = estimate.resolved.hardware.gpus_per_node
    held = question.busy.held(reading.devices, count)
    cards = question.busy.used(reading.devices, count)
    if held:
        data = {**data, "hardware": {USED: held, **data["hardware"]}}
        estimate = full_estimate(Asked(run=data, notes=notes))
    unlike, serving = unlike_words(cards), estimate.result.serving
    if unlike and serving is not None and serving.layers is not None:  # larger ones have more
        result = with_limits(estimate.result, [Limit(key="unlike cards", why=unlike, could="less")])
        estimate = replace(estimate, result=result)
    return with_other_cards(estimate), data, cards


def _fits_alone(run: Mapping[str, Any]) -> bool:
    """Whether a run fits where nothing else uses its cards."""
    return verdict({**run, "hardware": {**run["hardware"], USED: 0}}) == FITS


def _settled(reading: Reading, settings: Sequence[str]) -> Reading:
    """The reading without limits that a --set of the user settles."""
    given = [f"--set {one.partition('=')[0].strip()}=" for one in settings]
    limits = [one for one in reading.limits if not one.settle.startswith(tuple(given))]
    return replace(reading, limits=limits) if given else reading


def _of_run(reading: Reading, question: CheckQuestion) -> dict[str, Any]:
    """The hardware section of a run: the card of the options, else the one that the command or its
    file names, else this machine's. A server that gives each GPU some layers uses all it sees.
    """
    given, machine = question.hardware, question.machine
    own = dict(reading.run.get("hardware") or {})
    name = _server_name(reading)
    if name and server_row(name).splits_by_layer and question.sees_cards(reading):
        seen = question.busy.used(reading.devices, len(question.busy.cards))
        own.setdefault("num_gpus", len(seen))
    if given.keys() & CARD_KEYS:
        own = {key: value for key, value in own.items() if key not in CARD_KEYS}
    here = machine if question.is_here(reading) else {}
    node = {} if "node_memory_gb" in given else least_section(here, own)
    without = {key: value for key, value in own.items() if key not in NODE_KEYS}
    return {**here, **without, **node, **given}


def _used_gpus(reading: Reading, run: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A server's run on the GPUs that its command uses, and a sentence where more are there."""
    used = (reading.run.get("hardware") or {}).get("num_gpus")
    count, name = run["hardware"].get("num_gpus"), _server_name(reading)
    if not name or not used or server_row(name).splits_by_layer or count <= used:
        return run, []
    run = {**run, "hardware": {**run["hardware"], "num_gpus": used}}
    return run, [f"the command uses {used} of {count} GPUs"]


def _server_name(reading: Reading) -> str:
    """The server that is started; empty where none is."""
    return spellings().get((reading.run.get("inference") or {}).get("engine", ""), "")


def _no_card(reading: Reading) -> Limit:
    """The limit where the card is not known."""
    if reading.card is None:
        return CARD
    return replace(CARD, why=f"{reading.card.said} names none that is known")


def _gpu_bytes(hardware: Mapping[str, Any]) -> int | None:
    """Memory of one GPU; None where no card is named. Raises where the name means no card."""
    if not hardware.keys() & CARD_KEYS:
        return None
    return find_hardware(convert(hardware, GPUConfig), None).card_bytes


def _cannot_tell(reading: Reading, problems: Sequence[str]) -> Checked:
    """The answer for a run that is read, but not modelled."""
    if reading.unsaid and any("$" in one or one == NO_MODEL for one in problems):
        problems = [*problems, reading.unsaid]
    data = unknown(problems)
    return Checked(
        reading=reading,
        code=CANNOT_TELL,
        data={**data, **_read_data(reading)},
        problems=tuple(problems),
    )


def _data(reading: Reading, code: int, run: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """The answer as data: the verdict, the four numbers, and what was read."""
    return {
        "verdict": result.verdict,
        "exit_code": code,
        "summary": result.summary,
        **_read_data(reading),
        "limits": to_builtins(result.limits),
        "run": run,
        "result": to_builtins(result),
    }


def _read_data(reading: Reading) -> dict[str, Any]:
    return {key: getattr(reading, key) for key in ("tool", "version", "keys", "assumed")}


def unknown_tool(error: UnknownToolError) -> dict[str, Any]:
    """The answer as data where the command starts no tool that is known."""
    return unknown(error.problems)


def unknown(problems: Sequence[str]) -> dict[str, Any]:
    """The answer as data where nothing was estimated, and why."""
    words = f"{WORDS[UNSURE]}: {problems[0]}"
    facts = {"verdict": UNSURE, "exit_code": CANNOT_TELL, "summary": words}
    return {**facts, "problems": list(problems)}
