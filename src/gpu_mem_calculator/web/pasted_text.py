"""What a client asks, in a body; pasted text as a run file, by keys that the form shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from ..estimates.busy import BusyCards
from ..estimates.calculator import full_estimate
from ..estimates.checked import CARD
from ..estimates.fit_verdict import UNSURE, WORDS
from ..estimates.memory_result import with_limits
from ..ledger.secrets import hide_command, hide_random
from ..runfile.config import MOST_NOTE, MOST_NOTES
from ..runfile.program import Translation
from ..runfile.read import NOTES
from ..runfile.text.errors import InputError
from ..runfile.text.json_text import parse_json
from ..tools.huggingface.sections import SETTLE
from ..tools.logs.read import is_printed
from ..tools.program_section import with_program
from ..tools.read import TEXT_ALONE, Asked, Door, read_all, read_at_releases
from ..tools.reading import TEXT
from ..tools.reading.reading import RUN_FILE
from ..tools.releases.named import KnownReleases, read_at

if TYPE_CHECKING:
    from ..advice.diagnosis.diagnosis import Diagnosis

FILES = "files"  # beside a text, by name
PRINTED = "what a program printed"
LENGTH = "--set training.seq_len=TOKENS"  # where there is no program
MOST_BEGIN = 160  # characters of a text that a note quotes
# A table, and what stands above it: the time, and the command with its prompt.
SMI, SMI_ROW = "NVIDIA-SMI", re.compile(r"\s*[|+][-=+ ].*[|+]\s*$")
SMI_CALL = re.compile(r"(\w{3} \w{3} +\d+ [\d:]+ \d{4}|.*[$#>] *nvidia-smi|nvidia-smi)\s*")


def source(body: Any) -> Any:
    """What a body gives: the text of {"text": ...}, else a run file or another tool's data."""
    return body[TEXT] if _is_text(body) else body


def files_of(body: Any) -> Mapping[str, str]:
    """The texts of files that stand beside a body's text, by their names."""
    found: Mapping[str, str] = body.get(FILES, {}) if _is_text(body) else {}
    return found


def _is_text(body: Any) -> bool:
    """Whether a body is a text, with or without the files that it names."""
    if not isinstance(body, Mapping) or not {TEXT} <= body.keys() <= {TEXT, FILES}:
        return False
    files = body.get(FILES, {})
    texts = isinstance(files, Mapping) and all(isinstance(one, str) for one in files.values())
    return isinstance(body[TEXT], str) and texts


def without_cards(text: str) -> tuple[str, BusyCards]:
    """A text without the table that nvidia-smi prints, and the cards of that; none without one."""
    if SMI not in text:
        return text, BusyCards()
    from ..tools.logs.nvidia_smi import read_cards  # few ask for it

    rows = [(SMI_ROW.match(line) is not None, line) for line in text.splitlines()]
    table, rest = ([line for one, line in rows if one == kind] for kind in (True, False))
    cards = tuple(read_cards("\n".join(table)))
    return "\n".join(line for line in rest if not SMI_CALL.fullmatch(line)), BusyCards(cards)


def asked(body: Any, door: Door = TEXT_ALONE) -> Asked:
    """What a body asks."""
    return read_at_releases(source(body), replace(door, files=files_of(body)))


def door_of(gpu: str | int | None, at: str | None) -> Door:
    """The door of a client that names a card or a release."""
    named = None if at is None else read_at([at])
    door = Door(folder=None, releases=KnownReleases(named) if named else None)
    return door if gpu is None else door.on_card(f"{gpu}")


def diagnosed(body: Any, options: Mapping[str, str]) -> Diagnosis:
    """The diagnosis that a body asks for: a text with its run, or the bytes of a snapshot, whose
    run stands in the address as JSON. The address has the card and releases, too.
    """
    from ..advice.diagnosis.diagnose import diagnose

    run, door = options.get("run"), door_of(options.get("gpu") or None, options.get("at") or None)
    if isinstance(body, bytes):
        try:
            given = None if run is None else parse_json(run)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the run is not JSON: {error}") from None
        return diagnose(body, None if given is None else asked(given, door), door)
    if run is not None:
        raise InputError("the run stands in the body, beside the text")
    text = body.get(TEXT) if isinstance(body, Mapping) else None
    if not isinstance(text, str) or body.keys() - {TEXT, "run"}:
        raise InputError('the body must be {"text": "...", "run": ...}, the run where it is known')
    given = body.get("run")
    return diagnose(text, None if given is None else asked(given, door), door)


class FilesWantedError(InputError):
    """A command names files that are not here; `files` has their names."""

    def __init__(self, problems: Iterable[str], files: list[str]) -> None:
        super().__init__(problems)
        self.files = files


def text_and_files(body: Any) -> tuple[str, Mapping[str, str]]:
    """A body's text, and the texts of files that it names."""
    if not _is_text(body):
        form = '{"text": "...", "files": {"ds.json": "..."}}'
        raise InputError(f"the body must be an object with a text, and files that it names: {form}")
    return body[TEXT], files_of(body)


def read_pasted(text: str, files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The run file, or the sections of one, that a text means, with notes: what it was read from
    and what was assumed; and which kind the text was. A log means none: `POST /api/diagnose` reads
    it.

    Of several commands the first that can be read, with its `name`, and the others as `others`. Its
    `verdict` and `summary` are by the ledger alone.
    `files` are texts of files that it names; the answer's `wanted` are names of further ones.
    """
    if is_printed(text):
        return {"run": {}, "what": PRINTED, **_unsure(f"{PRINTED}: diagnose says why it died")}
    door = Door(folder=None, files=files or {}, wanted=[])
    try:
        answer = _read_with(text, door)
    except InputError as error:
        if not door.wanted:
            raise
        named = [one for one in door.wanted if one in str(error)]  # the others are not needed
        raise FilesWantedError(error.problems, named or door.wanted) from None
    return {**answer, "wanted": door.wanted} if door.wanted else answer


def _read_with(text: str, door: Door) -> dict[str, Any]:
    found = read_all(text, door)
    if len(found) == 1:
        return {**_answer(found[0], text), **_verdict(found[0])}
    answers = [_tried(one) for one in found]
    first = next((one for one in answers if "run" in one), None)
    if first is None:
        raise InputError([f"{one['name']}: {why}" for one in answers for why in one["problems"]])
    others = [one for one in answers if one is not first]
    return {**first, **_verdict(found[answers.index(first)]), "others": others}


def _verdict(found: Asked) -> dict[str, str]:
    """The verdict of a run by the ledger, and its line; of another tool's also open for want of a
    card.
    """
    reading = found.reading
    try:
        estimate = full_estimate(found, replay=False)
    except InputError as error:
        return _unsure(f"not estimated: {error.problems[0]}")
    own = reading is None or reading.is_own or estimate.resolved.hardware.named
    result = estimate.result if own else with_limits(estimate.result, [CARD])
    return {"verdict": result.verdict, "summary": result.summary}


def _unsure(why: str) -> dict[str, str]:
    """The verdict and the line where nothing is estimated."""
    return {"verdict": UNSURE, "summary": f"{WORDS[UNSURE]}: {why}"}


def _tried(found: Asked) -> dict[str, Any]:
    """The answer for one of several commands, or why it cannot be read."""
    assert found.reading is not None
    name = found.reading.name or found.reading.tool
    try:
        return {**_answer(found, name), "name": name}
    except InputError as error:
        return {"name": name, "problems": list(error.problems)}


def _answer(found: Asked, text: str) -> dict[str, Any]:
    """The run that one command or file means."""
    reading = found.reading
    assert reading is not None
    if reading.problems:
        raise InputError(reading.problems)
    if reading.tool == RUN_FILE:
        found.checked()
    run, meant = _opened(found) if reading.is_deepspeed else found.run, Translation()
    if run.get("program") is not None:
        run, _, meant = with_program(run, {})
        run = {**run, **_asked_of_the_form(run)}
    what = f"{reading.tool} {reading.version}".rstrip()
    if reading.is_own:
        return {"run": run, "what": what}
    assumed = [*meant.warnings, *found.notes, *meant.assumed]
    kept = [f"read from {what}{_begin(text)}", *assumed]
    limits = [f"not modelled: {limit}" for limit in reading.limits]
    answer = {"run": {**run, NOTES: [one[:MOST_NOTE] for one in kept[:MOST_NOTES]]}, "what": what}
    return {**answer, "notes": [*limits, *assumed]} if limits or assumed else answer


def _asked_of_the_form(run: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of a run that has no program any more, settled by the form's keys."""
    limits = [
        {**one, "settle": one["settle"].replace(SETTLE, LENGTH)}
        for one in to_builtins(run.get("limits", []))
    ]
    return {"limits": limits} if limits else {}


def _begin(text: str) -> str:
    """How a command or a script begins, without its comments; empty for JSON."""
    lines = (line.strip() for line in hide_random(hide_command(text)).splitlines())
    words = " ".join(" ".join(line.split()) for line in lines if line and not line.startswith("#"))
    if not words or words[0] in "{[":
        return ""
    return f": {words}" if len(words) <= MOST_BEGIN else f": {words[:MOST_BEGIN]} …"


def _opened(asked: Asked) -> dict[str, Any]:
    """The sections of DeepSpeed's JSON; without the number of GPUs where it leaves that open."""
    run = {name: asked.run[name] for name in ("training", "engine")}
    hardware = asked.run["hardware"]
    return run | ({"hardware": hardware} if hardware["num_gpus"] > 1 else {})
