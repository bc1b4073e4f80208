"""The answer for each command of what is asked: whether it fits; and what those on one GPU take
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from ..ledger.units import gib
from ..run.limits import Limit
from ..runfile.config import GPUConfig
from ..runfile.read import with_settings
from ..runfile.resolve.hardware import find_hardware
from ..runfile.text.errors import InputError
from ..tools.read import Asked, Door, read_all
from ..tools.reading.node_memory import NODE_KEYS, least_section
from ..tools.reading.reading import RUN_FILE, Reading
from ..tools.reading.tools import CARD_KEYS, UnknownToolError
from ..tools.translation.tools import TOOLS
from .bounds import bounded_verdict
from .calculator import Estimate, full_estimate, with_other_cards
from .fit_verdict import EXIT_CODES, FITS, SHORT, UNSURE
from .memory_result import with_limits
from .result import MemoryResult
from .verdict_words import total_bytes

if TYPE_CHECKING:
    from ..tools.read import Anything
    from ..tools.releases.named import KnownReleases, Named
    from ..tools.releases.release import Release

DOES_NOT_FIT, CANNOT_TELL, BAD_INPUT = EXIT_CODES[SHORT], EXIT_CODES[UNSURE], 2
NO_MODEL = "nothing that was read names the model; add --set model.name=owner/model"
CARD = Limit(
    key="the card", why="nothing names it", settle="--gpu NAME, such as --gpu h100; see gpus"
)


class CheckQuestion(Struct, frozen=True, kw_only=True):
    """What is asked beside the command.

    - `hardware`: the section that is given; `machine`: that of the machine, for what neither it nor
      the command says
    - `settings`: `section.key=value`
    - `named`: the releases that are named; `here`: those that were found where the command would
      run, with a sentence in `unread` for what could not be read
    """

    hardware: Mapping[str, Any] = {}
    machine: Mapping[str, Any] = {}
    settings: Sequence[str] = ()
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
            gpu_bytes=given,
            machine_bytes=machine,
            releases=self._known(),
            options=lambda _: ((*sizes, *self.settings), ()),
        )

    def _known(self) -> KnownReleases | None:
        """The releases that are named or were found."""
        if self.named is None:
            return None
        from ..tools.releases.named import KnownReleases

        return KnownReleases(self.named, tuple(self.here))


class Checked(Struct, frozen=True, kw_only=True):
    """The answer for one command.

    - `code`: its exit code; `problems`: why it has no estimate
    - `result`: its estimate, and `gpus_per_node` of it
    - `data`: its report; `lines`: the same for a screen, where there is one
    - `estimate`: what its lines are made of
    """

    reading: Reading
    code: int
    data: Mapping[str, Any]
    lines: Sequence[Any] = ()
    problems: tuple[str, ...] = ()
    result: MemoryResult | None = None
    estimate: Estimate | None = None
    gpus_per_node: int = 1

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


class SharedGpu(Struct, frozen=True, kw_only=True):
    """A GPU that several commands use at the same time, and whether it has enough for all."""

    devices: tuple[str, ...]
    parts: tuple[tuple[str, int], ...]
    has: int
    verdict: str

    @property
    def total(self) -> int:
        """Bytes of all together."""
        return sum(size for _, size in self.parts)

    @property
    def text(self) -> str:
        """The figures in one line."""
        names = f"GPU{'s' * (len(self.devices) > 1)} {', '.join(self.devices)}"
        parts = " + ".join(f"{gib(size)} {name}" for name, size in self.parts)
        return f"{names}: {gib(self.total)} of {gib(self.has)} GiB together ({parts})"

    @property
    def data(self) -> dict[str, Any]:
        """The same as data."""
        parts = [{"name": name, "bytes": size} for name, size in self.parts]
        has = {"gpu_memory_bytes": self.has, "total_bytes": self.total}
        return {"devices": list(self.devices), "verdict": self.verdict, **has, "parts": parts}


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
        asked = Asked(run=data, notes=(*assumed, *question.unread))
        estimate = with_other_cards(full_estimate(asked))
    except InputError as error:
        return _cannot_tell(reading, error.problems)
    result = estimate.result
    if not estimate.resolved.hardware.named:
        result = with_limits(result, [_no_card(reading)])
    code = EXIT_CODES[result.verdict]
    return Checked(
        reading=reading,
        code=code,
        data=_data(reading, code, data, result),
        result=result,
        estimate=replace(estimate, result=result),
        gpus_per_node=estimate.resolved.hardware.gpus_per_node,
    )


def _settled(reading: Reading, settings: Sequence[str]) -> Reading:
    """The reading without limits that a --set of the user settles."""
    given = [f"--set {one.partition('=')[0].strip()}=" for one in settings]
    limits = [one for one in reading.limits if not one.settle.startswith(tuple(given))]
    return replace(reading, limits=limits) if given else reading


def _of_run(reading: Reading, question: CheckQuestion) -> dict[str, Any]:
    """The hardware section of a run: the card of the options, else the one that the command or its
    file names, else this machine's.
    """
    given, machine = question.hardware, question.machine
    own = dict(reading.run.get("hardware") or {})
    if given.keys() & CARD_KEYS:
        own = {key: value for key, value in own.items() if key not in CARD_KEYS}
    here = {} if own.keys() & CARD_KEYS or reading.card is not None else machine
    node = {} if "node_memory_gb" in given else least_section(here, own)
    without = {key: value for key, value in own.items() if key not in NODE_KEYS}
    return {**here, **without, **node, **given}


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
    data = {"verdict": UNSURE, "exit_code": CANNOT_TELL, "problems": list(problems)}
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


def worst_code(checked: Sequence[Checked], shared: Sequence[SharedGpu]) -> int:
    """The worst exit code, also of what commands take together."""
    codes = [*(one.code for one in checked), *(EXIT_CODES[gpu.verdict] for gpu in shared)]
    return max(codes, key=_severity)


def code_word(code: int) -> str:
    """The verdict of an exit code; of bad input it is open."""
    return next((word for word, number in EXIT_CODES.items() if number == code), UNSURE)


def _severity(code: int) -> int:
    """1 before 2 before 3 before 0: one command that does not fit decides."""
    return (EXIT_CODES[FITS], CANNOT_TELL, BAD_INPUT, DOES_NOT_FIT).index(code)


def shared_gpus(checked: Sequence[Checked]) -> list[SharedGpu]:
    """The GPUs that several commands use at the same time; those with the same commands are one."""
    users: dict[tuple[str, str], list[int]] = {}
    for number, one in enumerate(checked):
        if one.result is not None:
            for slot in one.reading.slots:
                for device in one.devices:
                    users.setdefault((slot, device), []).append(number)
    groups: dict[tuple[int, ...], dict[str, None]] = {}
    for (_, device), numbers in users.items():
        if len(numbers) > 1:
            groups.setdefault(tuple(numbers), {})[device] = None
    whole = [set(numbers) for numbers in groups]
    return [
        _shared([checked[number] for number in numbers], tuple(devices))
        for numbers, devices in groups.items()
        if not any(set(numbers) < other and devices.keys() <= _of(groups, other) for other in whole)
    ]


def _of(groups: Mapping[tuple[int, ...], dict[str, None]], numbers: set[int]) -> set[str]:
    """The GPUs of a group."""
    return {device for one, devices in groups.items() if set(one) == numbers for device in devices}


def _shared(found: Sequence[Checked], devices: tuple[str, ...]) -> SharedGpu:
    results = [one.result for one in found if one.result is not None]
    parts = tuple((one.reading.name or one.reading.tool, one.takes) for one in found)
    has = min(result.gpu_memory_bytes for result in results)
    room = has - sum(size for _, size in parts)
    limits = [limit for result in results for limit in result.limits]
    word = bounded_verdict(FITS if room >= 0 else SHORT, room, limits)
    return SharedGpu(devices=devices, parts=parts, has=has, verdict=word)


def answer_data(checked: Sequence[Checked], shared: Sequence[SharedGpu]) -> Mapping[str, Any]:
    """The answer as data; of several with their names, and the worst verdict."""
    if len(checked) == 1:
        return checked[0].data
    code = worst_code(checked, shared)
    answers = [{"name": one.reading.name, **one.data} for one in checked]
    together = [gpu.data for gpu in shared]
    return {"verdict": code_word(code), "exit_code": code, "answers": answers, "together": together}


def unknown_tool(error: UnknownToolError) -> dict[str, Any]:
    """The answer as data where the command starts no tool that is known."""
    return {"verdict": UNSURE, "exit_code": CANNOT_TELL, "problems": error.problems}
