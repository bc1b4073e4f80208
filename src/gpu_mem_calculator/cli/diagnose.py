"""Say why a run died, by what it printed: a log, an error, nvidia-smi's table; or
by torch's memory snapshot, whose pickle is read without executing anything.

Reads files, or standard input. The run is that of --config, or of the command
behind --.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..runfile.text.errors import InputError
from .output import show_answer
from .words import COMMAND

if TYPE_CHECKING:
    from ..tools.read import Asked, Door

FOUND, UNKNOWN = 0, 3
UNREAD = "the command was not read, and the answer is by the text alone"


def separated(words: Sequence[str]) -> list[str]:
    """The words, with the command behind `--` as the last option's value."""
    if "--" not in words:
        return list(words)
    place = list(words).index("--")
    return [*words[:place], COMMAND, *words[place + 1 :]]


def run(args: argparse.Namespace) -> int:
    """Read what was printed, and report why it died."""
    from ..advice.diagnosis.diagnose import diagnose
    from ..report.diagnosis import diagnosis_data, diagnosis_lines
    from ..report.lines import with_pasted
    from ..runfile.text.files import read_printed
    from ..tools.logs.snapshot import is_snapshot_text, text_of

    files = args.files or ["-"]
    texts = [text_of(read_printed(path)) for path in files]
    text = "\n".join(sorted(texts, key=is_snapshot_text))  # a stack is looked for at the end
    if not text.strip():
        names = " and ".join("standard input" if one == "-" else one for one in files)
        raise InputError(f"{names} is empty; give a log, or an error with the lines around it")
    notes: tuple[str, ...] = ()
    try:
        asked = _run(args)
    except InputError as error:
        if not args.launch or args.config:
            raise
        asked, notes = None, tuple(f"{UNREAD}: {one}" for one in error.problems)
    found = diagnose(text, asked, _door(args, folder=None))
    found = replace(found, notes=(*found.notes, *notes))
    show_answer(
        args, lambda: diagnosis_data(found), with_pasted(diagnosis_lines(found), found.summary)
    )
    return FOUND if found.cause is not None else UNKNOWN


def _run(args: argparse.Namespace) -> Asked | None:
    """The run of --config or of the command, with the card and the settings that are given."""
    from ..tools.read import read_at_releases

    if args.config and args.launch:
        raise InputError("--config and a command both say the run; give one of them")
    source = args.config or args.launch
    return read_at_releases(source, _door(args)) if source else None


def _door(args: argparse.Namespace, folder: str | None = "") -> Door:
    """The card, the settings and the releases that are given, of a run that is read."""
    from ..tools.read import Door
    from .releases import known_releases, named_texts

    card = getattr(args, "hardware.gpu")
    known = known_releases(named_texts(args))
    door = Door(folder=folder, releases=known, options=lambda _: (args.settings, ()))
    return door.on_card(card) if card else door
