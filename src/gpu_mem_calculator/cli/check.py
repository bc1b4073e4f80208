"""Check whether a command fits before you start it: put this in front of it.

Reads the command and the files that it names. Runs nothing without --run.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..advice.one_change import pasted_line, with_change
from ..estimates.busy import BusyCards
from ..estimates.checked import (
    BAD_INPUT,
    CANNOT_TELL,
    Checked,
    CheckQuestion,
    asked_readings,
    check_reading,
)
from ..estimates.fit_verdict import EXIT_CODES, FITS, UNSURE, WORDS
from ..estimates.several import (
    Shared,
    SharedGpu,
    answer_data,
    code_word,
    order_of,
    several_words,
    taken_together,
    worst_code,
)
from ..estimates.summary import figures_words
from ..report.headline import STYLES
from ..report.lines import BOLD, DIM, WARN, WIDTH, Line, gib, line, with_pasted, wrap_lines
from ..runfile.text.errors import InputError, print_to_stderr
from ..tools.reading.reading import Reading
from ..tools.reading.tools import CARD_KEYS
from .drawn_progress import drawn_progress
from .output import write
from .parser import option_keys
from .releases import named_texts, releases_of_command
from .screen import Screen

if TYPE_CHECKING:
    from ..advice.training.remedies import Remedy
    from ..report.remedy_lines import Commands

CHANGED_FILES = ("comment", "sarif", "junit", "code_quality")  # what --changed writes
# Options of `check` that set a key of the run file each.
KEYS = {option: key for key, option in option_keys("check card").items()}
WITH_VALUE = (
    *KEYS,
    "--nvidia-smi",
    "--at",
    "-g",
    "-m",
    "--set",
    "--format",
    "-f",
    "--output",
    "-o",
    "--changed",
    *(f"--{one.replace('_', '-')}" for one in CHANGED_FILES),
)
# Options of `check` that people write after a command or a file, where they are not read.
LATE = (*KEYS, "--nvidia-smi", "--at", "--set", "--changed", "--long")


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

    if args.changed is not None or any(getattr(args, one) for one in CHANGED_FILES):
        from . import changed

        return changed.run(args, _given(args))
    if not args.launch:
        raise InputError("there is no command to check; write it after gpu-mem-calc check")
    if args.run:
        from .start import check_startable

        check_startable(args.launch)
    question = question_of(args)
    try:
        readings = asked_readings(args.launch, question, "")
    except InputError as error:
        late = _late_options(args.launch)
        if late or not isinstance(error, UnknownToolError):
            raise InputError(late or error.problems) from None
        print_to_stderr(*(f"cannot tell: {problem}" for problem in error.problems))
        return CANNOT_TELL
    with Screen(args.output, grows=len(readings) == 1) as screen:
        with drawn_progress():
            checked = [_check(args, one, question, screen) for one in readings]
        code = _report(args, checked, screen)
    if args.run and code == EXIT_CODES[FITS]:
        from .start import become

        become(args.launch)
    if args.run:
        print_to_stderr("not started, because it is not known to fit")
    return code


def question_of(args: argparse.Namespace) -> CheckQuestion:
    """What the options ask beside the command."""
    given, machine, busy = _hardware(args)
    named, here, unread = releases_of_command(args)
    return CheckQuestion(
        hardware=given,
        machine=machine,
        busy=busy,
        pasted=args.nvidia_smi is not None,
        settings=args.settings,
        named=named,
        here=here,
        unread=unread,
    )


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The hardware section of the options."""
    given = {key: getattr(args, key) for key in KEYS.values() if getattr(args, key) is not None}
    return {key.partition(".")[2]: value for key, value in given.items()}


def _late_options(words: Sequence[str]) -> list[str]:
    """A sentence where an option of ours stands after the command or the file."""
    late = next((word for word in words[1:] if word.partition("=")[0] in LATE), "")
    why = f"{late} after the command is the command's; write it before: check {late} ..."
    return [why] if late else []


def _report(args: argparse.Namespace, checked: Sequence[Checked], screen: Screen) -> int:
    """Report the answers; returns the worst exit code, also of what commands take together."""
    shared = taken_together(checked)
    code = worst_code(checked, shared)
    alone = checked[0] if len(checked) == 1 else None
    if args.format == "json":
        from ..report.encode import answer, to_json

        write(to_json(answer(answer_data(checked, shared))), args.output)
    else:
        screen.finish(
            alone.lines if alone else several_lines(args, checked, shared, code_word(code))
        )
    for each in checked:
        begin = "" if each.code == BAD_INPUT else f"{WORDS[UNSURE]}: "
        begin += "" if alone else f"{each.reading.name}: "
        print_to_stderr(*(f"{begin}{problem}" for problem in each.problems))
    return code


def _check(
    args: argparse.Namespace, reading: Reading, question: CheckQuestion, screen: Screen
) -> Checked:
    """The answer for one reading, with its lines where they are shown."""
    found = check_reading(reading, question)
    if found.code == BAD_INPUT:
        return found
    if args.format == "json":
        return with_change(found)
    from ..report.reading import reading_lines

    answer, pasted = list[Line](), found.data["summary"]
    if found.estimate is not None:
        answer, pasted = _answer(args, found.estimate, screen)
    busy = [part for one in found.busy for part in wrap_lines("", one)]
    lines = [*answer, *busy, *reading_lines(found.reading, found.result)]
    return replace(found, lines=with_pasted(lines, pasted))


def _hardware(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any], BusyCards]:
    """The hardware section of the options, that of this machine where they name no card, and the
    cards as they are.
    """
    section = _given(args)
    named = section.keys() & CARD_KEYS
    if named and args.nvidia_smi is None:
        return section, {}, BusyCards()
    from .this_machine import card_section, pasted_cards, this_machine

    if args.nvidia_smi is None:
        return section, *this_machine()
    busy = pasted_cards(args.nvidia_smi)
    return {**({} if named else card_section(busy.cards)), **section}, {}, busy


def _answer(args: argparse.Namespace, estimate: Any, screen: Screen) -> tuple[list[Line], str]:
    """The short answer of `calculate` or `infer`, or with --long the whole report; and the line to
    be pasted.
    """
    if estimate.served:
        from ..advice.serving.answers import answers
        from ..estimates.serving.infer_command import infer_command

        asked = infer_command(estimate.result.run)
        found = answers(estimate, (), (), command=asked)
        from .serving import serving_text

        return serving_text(args, estimate, found, asked), pasted_line(estimate, found.remedies)
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
    own += [word for one in named_texts(args) for word in ("--at", one)]
    own += [word for one in args.settings for word in ("--set", one)]
    own += ["--nvidia-smi", args.nvidia_smi] if args.nvidia_smi else []
    from ..ledger.secrets import printed_words

    return printed_words(["check", *own, *more, *args.launch])


def several_lines(
    args: argparse.Namespace, checked: Sequence[Checked], shared: Sequence[Shared], verdict: str
) -> list[Line]:
    """The answers to several commands, and the line to be pasted."""
    lines = [*_deciding(checked, shared, verdict), line(), *_rows(checked, shared), line()]
    blocks = [*_blocks(checked, every=args.long)]
    if any(one.lines and _word(one) == FITS for one in checked) and not args.long:
        blocks += wrap_lines("details: ", f"gpu-mem-calc {shlex.join(_words(args, '--long'))}", DIM)
    return with_pasted([*lines, *blocks], several_words(checked, shared, verdict))


def _deciding(checked: Sequence[Checked], shared: Sequence[Shared], verdict: str) -> Iterator[Line]:
    """The worst verdict with what decides it, and what the commands take together."""
    reasons = [gpu.text for gpu in shared if gpu.verdict == verdict]
    alone = [one for one in checked if verdict in (_word(one), "" if reasons else FITS)]
    alone = [] if reasons and verdict == FITS else alone
    reasons += dict.fromkeys(one.reading.name or one.reading.tool for one in alone)
    yield from wrap_lines("", f"{WORDS[verdict]}: {'; '.join(reasons)}", STYLES[verdict])
    for gpu in shared:
        if gpu.verdict != verdict:
            yield from wrap_lines("", f"{WORDS[gpu.verdict]}: {gpu.text}", STYLES[gpu.verdict])


def _rows(checked: Sequence[Checked], shared: Sequence[Shared]) -> Iterator[Line]:
    """A row for each command, the worst first: its verdict, its figures, its model and tool."""
    worst = sorted(checked, key=lambda one: -order_of(one.code))
    sizes = ["" if one.result is None else figures_words(one.result) for one in worst]
    wide = max(map(len, sizes))
    for one, size in zip(worst, sizes, strict=True):
        name = one.reading.name or one.reading.tool
        subject = ", ".join(one.result.subject.split(", ")[:2]) if one.result else ""
        text = f"  {size:>{wide}}  {': '.join(filter(None, [subject, name]))}"
        word = f"{WORDS[_word(one)]:<{max(map(len, WORDS.values()))}}"
        room = WIDTH - len(word)
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        yield [(word, STYLES[_word(one)]), (text, "")]
        for beside in _beside(one, shared):
            said = f"{name} takes {gib(beside)} GiB beside the others; its row has the card alone"
            yield from wrap_lines("  ", said, WARN)


def _blocks(checked: Sequence[Checked], *, every: bool) -> Iterator[Line]:
    """Each answer under the names of its commands; without `every` of those that may not fit."""
    done: list[Sequence[Line]] = []
    for one in checked:
        if one.lines in done or not one.lines or (_word(one) == FITS and not every):
            continue
        done.append(one.lines)
        for name in (other.reading.name for other in checked if other.lines == one.lines):
            yield line(name or one.reading.tool, BOLD)
        yield from one.lines
        yield line()


def _beside(one: Checked, shared: Sequence[Shared]) -> Iterator[int]:
    """What a server takes of a shared GPU, where that is other than on the card alone."""
    name = one.reading.name or one.reading.tool
    parts = [part for gpu in shared if isinstance(gpu, SharedGpu) for part in gpu.parts]
    yield from (size for title, size in parts if title == name and size != one.takes)


def _word(one: Checked) -> str:
    """The verdict of an answer; one that cannot be read is open."""
    return one.result.verdict if one.result is not None else UNSURE
