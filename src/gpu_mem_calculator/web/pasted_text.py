"""What a client asks, in a body; pasted text as a run file, by keys that the form shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..estimates.busy import BusyCards
from ..runfile.program import Translation
from ..runfile.text.errors import InputError
from ..runfile.text.json_text import parse_json
from ..tools.logs.read import is_printed
from ..tools.program_section import with_program
from ..tools.read import TEXT_ALONE, Asked, read, read_all
from ..tools.reading import TEXT
from ..tools.reading.reading import RUN_FILE

if TYPE_CHECKING:
    from ..advice.diagnosis.diagnosis import Diagnosis

PRINTED = "what a program printed"
# A table, and what stands above it: the time, and the command with its prompt.
SMI, SMI_ROW = "NVIDIA-SMI", re.compile(r"\s*[|+][-=+ ].*[|+]\s*$")
SMI_CALL = re.compile(r"(\w{3} \w{3} +\d+ [\d:]+ \d{4}|.*[$#>] *nvidia-smi|nvidia-smi)\s*")


def source(body: Any) -> Any:
    """What a body gives: the text of {"text": ...}, else a run file or another tool's data."""
    is_text = isinstance(body, Mapping) and body.keys() == {TEXT} and isinstance(body[TEXT], str)
    return body[TEXT] if is_text else body


def without_cards(text: str) -> tuple[str, BusyCards]:
    """A text without the table that nvidia-smi prints, and the cards of that; none without one."""
    if SMI not in text:
        return text, BusyCards()
    from ..tools.logs.nvidia_smi import read_cards  # few ask for it

    rows = [(SMI_ROW.match(line) is not None, line) for line in text.splitlines()]
    table, rest = ([line for one, line in rows if one == kind] for kind in (True, False))
    cards = tuple(read_cards("\n".join(table)))
    return "\n".join(line for line in rest if not SMI_CALL.fullmatch(line)), BusyCards(cards)


def asked(body: Any) -> Asked:
    """What a body asks."""
    return read(source(body), TEXT_ALONE)


def diagnosed(body: Any, run: str | None = None) -> Diagnosis:
    """The diagnosis that a body asks for: a text with its run, or the bytes of a snapshot, whose
    run stands in the address as JSON.
    """
    from ..advice.diagnosis.diagnose import diagnose

    if isinstance(body, bytes):
        try:
            given = None if run is None else parse_json(run)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the run is not JSON: {error}") from None
        return diagnose(body, None if given is None else asked(given))
    if run is not None:
        raise InputError("the run stands in the body, beside the text")
    text = body.get(TEXT) if isinstance(body, Mapping) else None
    if not isinstance(text, str) or body.keys() - {TEXT, "run"}:
        raise InputError('the body must be {"text": "...", "run": ...}, the run where it is known')
    given = body.get("run")
    return diagnose(text, None if given is None else asked(given))


def read_pasted(text: str) -> dict[str, Any]:
    """The run file, or the sections of one, that a text means; which kind the text was; and notes:
    what was assumed, and what is not modelled. A log means none: `POST /api/diagnose` reads it.

    Of several commands the first that can be read, with its `name`, and the others as `others`.
    """
    if is_printed(text):
        return {"run": {}, "what": PRINTED}
    found = read_all(text, TEXT_ALONE)
    if len(found) == 1:
        return _answer(found[0])
    answers = [_tried(one) for one in found]
    first = next((one for one in answers if "run" in one), None)
    if first is None:
        raise InputError([f"{one['name']}: {why}" for one in answers for why in one["problems"]])
    return {**first, "others": [one for one in answers if one is not first]}


def _tried(found: Asked) -> dict[str, Any]:
    """The answer for one of several commands, or why it cannot be read."""
    assert found.reading is not None
    name = found.reading.name or found.reading.tool
    try:
        return {**_answer(found), "name": name}
    except InputError as error:
        return {"name": name, "problems": list(error.problems)}


def _answer(found: Asked) -> dict[str, Any]:
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
    what = f"{reading.tool} {reading.version}".rstrip()
    notes = [
        *(f"not modelled: {limit}" for limit in reading.limits),
        *meant.warnings,
        *(() if reading.is_own else found.notes),
        *meant.assumed,
    ]
    return {"run": run, "what": what, **({"notes": notes} if notes else {})}


def _opened(asked: Asked) -> dict[str, Any]:
    """The sections of DeepSpeed's JSON; without the number of GPUs where it leaves that open."""
    run = {name: asked.run[name] for name in ("training", "engine")}
    hardware = asked.run["hardware"]
    return run | ({"hardware": hardware} if hardware["num_gpus"] > 1 else {})
