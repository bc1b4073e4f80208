"""Check whether a command fits before you start it: put this in front of it.

Reads the command and the files that it names. Runs nothing without --run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..estimates.fit_verdict import FITS, SHORT, UNSURE, WORDS
from ..run.limits import Limit
from ..runfile.text.errors import InputError, print_to_stderr
from ..tools.read import Asked, Door, read_all
from ..tools.reading.reading import Reading
from ..tools.reading.tools import CARD_KEYS
from .fit_check import EXIT_CODES
from .output import write
from .parser import option_keys
from .screen import Screen
from .together import Checked, several_data, several_lines, shared_gpus

if TYPE_CHECKING:
    from ..advice.training.remedies import Remedy
    from ..report.remedy_lines import Commands

DOES_NOT_FIT, CANNOT_TELL, BAD_INPUT = EXIT_CODES[SHORT], EXIT_CODES[UNSURE], 2
NO_MODEL = "nothing that was read names the model; add --set model.name=owner/model"
CARD = Limit(
    key="the card", why="nothing names it", settle="--gpu NAME, such as --gpu h100; see gpus"
)
# Options of `check` that set a key of the run file each.
KEYS = {option: key for key, option in option_keys("check").items()}
WITH_VALUE = (*KEYS, "-g", "-m", "--set", "--format", "-f", "--output", "-o")


def separated(words: Sequence[str]) -> list[str]:
    """The words with `--` between the options of `check` and the command."""
    return split_words(words, WITH_VALUE)


def split_words(words: Sequence[str], with_value: Sequence[str]) -> list[str]:
    """The words with `--` between a verb's own options and the command behind them."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        name, sign, _ = words[place].partition("=")
        place += 2 if name in with_value and not sign else 1
    rest = list(words[place:])
    return [*words[:place], "--", *(rest[1:] if rest[:1] == ["--"] else rest)]


def run(args: argparse.Namespace) -> int:
    """Read the command, estimate it, and report whether it fits."""
    from ..tools.reading.tools import UnknownToolError

    if not args.launch:
        raise InputError("there is no command to check; write it after gpu-mem-calc check")
    if args.run:
        from .start import check_startable

        check_startable(args.launch)
    given, machine = _hardware(args)
    door = Door(gpu_bytes=_gpu_bytes(given), machine_bytes=_gpu_bytes(machine))
    try:
        readings = [one.reading for one in read_all(args.launch, door) if one.reading is not None]
    except UnknownToolError as error:
        print_to_stderr(*(f"cannot tell: {problem}" for problem in error.problems))
        return CANNOT_TELL
    except InputError as error:
        raise InputError([*error.problems, *_late_options(args.launch)]) from None
    if len(readings) == 1 and readings[0].problems:
        raise InputError(readings[0].problems)
    with Screen(args.output, grows=len(readings) == 1) as screen:
        checked = [_check(args, one, given, machine, screen) for one in readings]
        code = _report(args, checked, screen)
    if args.run and code == EXIT_CODES[FITS]:
        from .start import become

        become(args.launch)
    if args.run:
        print_to_stderr("not started, because it is not known to fit")
    return code


def _late_options(words: Sequence[str]) -> list[str]:
    """A sentence where an option of ours stands after the command."""
    late = next((word for word in words if word.partition("=")[0] in ("--gpu", "--gpu-mem")), "")
    why = f"{late} after the command is the command's; write it before: check {late} ..."
    return [why] if late else []


def _severity(code: int) -> int:
    """1 before 2 before 3 before 0: one command that does not fit decides."""
    return (EXIT_CODES[FITS], CANNOT_TELL, BAD_INPUT, DOES_NOT_FIT).index(code)


def _report(args: argparse.Namespace, checked: Sequence[Checked], screen: Screen) -> int:
    """Report the answers; returns the worst exit code, also of what commands take together."""
    shared = shared_gpus(checked)
    codes = [*(one.code for one in checked), *(EXIT_CODES[gpu.verdict] for gpu in shared)]
    code = max(codes, key=_severity)
    word = next((word for word, number in EXIT_CODES.items() if number == code), UNSURE)
    alone = checked[0] if len(checked) == 1 else None
    if args.format == "json":
        from ..report.encode import to_json

        data = alone.data if alone else several_data(checked, shared, code, word)
        write(to_json(data), args.output)
    else:
        screen.finish(alone.lines if alone else [*several_lines(checked, shared, word)])
    for each in checked:
        begin = "" if each.code == BAD_INPUT else f"{WORDS[UNSURE]}: "
        begin += "" if alone else f"{each.reading.name}: "
        print_to_stderr(*(f"{begin}{problem}" for problem in each.problems))
    return code


def _check(
    args: argparse.Namespace,
    reading: Reading,
    given: Mapping[str, Any],
    machine: Mapping[str, Any],
    screen: Screen,
) -> Checked:
    """The answer for one reading."""
    from ..estimates.calculator import full_estimate, with_other_cards
    from ..estimates.memory_result import with_limits
    from ..runfile.read import with_settings
    from ..tools.translation.tools import TOOLS

    if reading.problems:
        problems = tuple(reading.problems)
        return Checked(
            reading=reading, code=BAD_INPUT, data={"problems": reading.problems}, problems=problems
        )
    reading = _settled(reading, args.settings)
    hardware = _of_run(reading, given, machine)
    data = with_settings({**reading.run_file, "hardware": hardware}, args.settings)
    tool = TOOLS.get((data.get("program") or {}).get("tool", ""))
    if not data.get("model") and (tool is None or not tool.own_model):
        return _cannot_tell(reading, [NO_MODEL])
    try:
        estimate = with_other_cards(full_estimate(Asked(run=data, notes=(*reading.assumed,))))
    except InputError as error:
        return _cannot_tell(reading, error.problems)
    result = estimate.result
    if not estimate.resolved.hardware.named:
        result = with_limits(result, [_no_card(reading)])
    estimate, code = replace(estimate, result=result), EXIT_CODES[result.verdict]
    lines: list[Any] = []
    if args.format != "json":
        from ..report.reading import reading_lines

        lines = [*_answer(args, estimate, screen), *reading_lines(reading, result)]
    return Checked(
        reading=reading,
        code=code,
        data=_data(reading, code, data, result) if args.format == "json" else {},
        lines=lines,
        result=result,
        gpus_per_node=estimate.resolved.hardware.gpus_per_node,
    )


def _settled(reading: Reading, settings: Sequence[str]) -> Reading:
    """The reading without limits that a --set of the user settles."""
    given = [f"--set {one.partition('=')[0].strip()}=" for one in settings]
    limits = [one for one in reading.limits if not one.settle.startswith(tuple(given))]
    return replace(reading, limits=limits) if given else reading


def _hardware(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The hardware section of the options, and that of this machine where they name no card."""
    given = {key: getattr(args, key) for key in KEYS.values() if getattr(args, key) is not None}
    section = {key.partition(".")[2]: value for key, value in given.items()}
    if section.keys() & CARD_KEYS:
        return section, {}
    from .this_machine import this_machine

    return section, this_machine()


def _of_run(
    reading: Reading, given: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """The hardware section of a run: the card of the options, else the one that the command or its
    file names, else this machine's.
    """
    own = dict(reading.run.get("hardware") or {})
    if given.keys() & CARD_KEYS:
        own = {key: value for key, value in own.items() if key not in CARD_KEYS}
    named = own.keys() & CARD_KEYS or reading.card is not None
    return {**({} if named else machine), **own, **given}


def _no_card(reading: Reading) -> Limit:
    """The limit where the card is not known."""
    if reading.card is None:
        return CARD
    return replace(CARD, why=f"{reading.card.said} names none that is known")


def _gpu_bytes(hardware: Mapping[str, Any]) -> int | None:
    """Memory of one GPU; None where no card is named. Raises where the name means no card."""
    if not hardware.keys() & CARD_KEYS:
        return None
    from msgspec import convert

    from ..runfile.config import GPUConfig
    from ..runfile.resolve.hardware import find_hardware

    return find_hardware(convert(hardware, GPUConfig), None).card_bytes


def _cannot_tell(reading: Reading, problems: Sequence[str]) -> Checked:
    """The answer for a run that is read, but not modelled."""
    from ..report.reading import reading_lines

    data = {"verdict": UNSURE, "exit_code": CANNOT_TELL, "problems": list(problems)}
    return Checked(
        reading=reading,
        code=CANNOT_TELL,
        data={**data, **_read_data(reading)},
        lines=reading_lines(reading),
        problems=tuple(problems),
    )


def _answer(args: argparse.Namespace, estimate: Any, screen: Screen) -> list[Any]:
    """The short answer of `calculate` or `infer`, or with --long the whole report."""
    if estimate.served:
        from ..advice.serving.answers import answers
        from ..estimates.serving.infer_command import infer_command

        asked = infer_command(estimate.result.run)
        found = answers(estimate, (), (), command=asked)
        from .serving import serving_text

        return serving_text(args, estimate, found, asked)
    from .calculate import training_lines

    return training_lines(args, estimate, partial(_commands, args), screen)


def _commands(args: argparse.Namespace, remedies: Sequence[Remedy]) -> Commands:
    """The same command, and the command with each remedy."""
    from ..report.remedy_lines import Commands

    changed = [
        _words(args, *(word for one in remedy.settings for word in ("--set", one)))
        for remedy in remedies
    ]
    return Commands(_words(args), _words(args, "--long"), changed, _words(args, "--long"))


def _words(args: argparse.Namespace, *more: str) -> list[str]:
    """The words of the same command with further options."""
    given = [(name, getattr(args, key)) for name, key in KEYS.items()]
    own = [word for name, value in given if value is not None for word in (name, f"{value}")]
    own += [word for one in args.settings for word in ("--set", one)]
    from ..ledger.secrets import printed_words

    return printed_words(["check", *own, *more, *args.launch])


def _data(reading: Reading, code: int, run: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """The answer as data: the verdict, the four numbers, and what was read."""
    from msgspec import to_builtins

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
