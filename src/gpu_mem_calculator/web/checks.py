"""Whether commands fit, for a client, and for what admits jobs to a cluster.

What does not fit is denied with our sentence. What cannot be told is admitted, with a warning where
the protocol has one, unless `strict` asks for the opposite. What starts nothing that is known is
admitted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..advice.one_change import with_change
from ..estimates.checked import Checked, CheckQuestion, asked_readings, check_reading, unknown_tool
from ..estimates.fit_verdict import EXIT_CODES, FITS, SHORT
from ..estimates.several import Shared, answer_data, taken_together, worst_code
from ..estimates.verdict_words import verdict_line
from ..runfile.text.errors import InputError
from ..runfile.text.json_text import parse_json
from ..tools.reading.tools import UnknownToolError
from ..tools.releases.named import read_at
from .bodies import (
    AdmissionAnswer,
    AdmissionResponse,
    AdmissionReview,
    DeniedStatus,
    SkyPilotRequest,
)
from .options import Options, is_true
from .pasted_text import asked, files_of, source, without_cards

Body = TypeVar("Body")
MOST_LETTERS = 256  # of a warning; Kubernetes cuts longer ones
ENDS = ("DELETE", "CONNECT")  # operations that start nothing


class DeniedError(InputError):
    """A job that does not fit, where the protocol says so by a status."""


def check(body: Any, options: Options) -> Any:
    """Whether each command of a text fits, and those on one GPU together; or a run file."""
    try:
        question = replace(_question(options), files=files_of(body))
        checked = [with_change(one) for one in checked_source(source(body), question)]
    except UnknownToolError as error:
        return unknown_tool(error)
    return answer_data(checked, taken_together(checked))


def checked_source(given: Any, question: CheckQuestion, folder: str | None = None) -> list[Checked]:
    """The answers for what is given, on the cards of an nvidia-smi table in it.

    folder: where the files are that it names; None where none may be opened
    """
    if isinstance(given, str):
        given, busy = without_cards(given)
        if busy.cards:
            least = min(busy.cards, key=lambda card: card.total or 0)
            hardware = question.hardware or least.section
            question = replace(question, hardware=hardware, busy=busy, pasted=True)
    elif folder is None:
        asked(given).checked()  # of a run file, what is wrong is its sender's
    return [check_reading(one, question) for one in asked_readings(given, question, folder)]


def kubernetes(body: Any, options: Options) -> AdmissionAnswer:
    """The answer to an AdmissionReview of Kubernetes, on any object with containers."""
    request = _read(body, AdmissionReview).request
    denied, warnings = "", list[str]()
    if request.object is not None and request.operation not in ENDS:
        denied, warnings = _decided(json.dumps(request.object), options)
    answer = AdmissionResponse(
        uid=request.uid,
        allowed=not denied,
        status=DeniedStatus(code=403, message=denied) if denied else None,
        warnings=[_cut(one) for one in warnings] if not denied else [],
    )
    return AdmissionAnswer(response=answer)


def skypilot(body: Any, options: Options) -> str:
    """The answer to a RestfulAdminPolicy of SkyPilot: the task and its configuration as they are.

    SkyPilot sends its JSON as a string of JSON, and reads the answer in the same form.
    """
    if isinstance(body, str):
        try:
            body = parse_json(body)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the text in the body is not JSON: {error}") from None
    request = _read(body, SkyPilotRequest)
    denied, _ = _decided(request.task, options)
    if denied:
        raise DeniedError(denied)
    return json.dumps({"task": request.task, "skypilot_config": request.skypilot_config})


def _decided(text: str, options: Options) -> tuple[str, list[str]]:
    """Why what a text starts is denied, empty where it is admitted; and warnings."""
    strict, question = is_true(options, "strict"), _question(options)
    question.door(None)  # a card that is not known is not the job's fault
    try:
        checked = checked_source(text, question)
    except InputError as error:
        return "", list(error.problems[:1])
    shared = taken_together(checked)
    code, said = worst_code(checked, shared), _sentences(checked, shared)
    if code == EXIT_CODES[SHORT] or (strict and code != EXIT_CODES[FITS]):
        return "; ".join(said), []
    return "", said


def _sentences(checked: Sequence[Checked], shared: Sequence[Shared]) -> list[str]:
    """A sentence for each command that does not certainly fit, and for what they take together."""
    found = []
    for one in checked:
        if one.code != EXIT_CODES[FITS]:
            said = verdict_line(one.result) if one.result is not None else "; ".join(one.problems)
            found.append(f"{one.reading.name or one.reading.tool}: {said}")
    return [*found, *(gpu.text for gpu in shared if gpu.verdict != FITS)]


def _question(options: Options) -> CheckQuestion:
    """What the options ask."""
    hardware = {"gpu": options["gpu"]} if options.get("gpu") else {}
    named = read_at([options["at"]]) if options.get("at") else None
    return CheckQuestion(hardware=hardware, named=named)


def _read(body: Any, kind: type[Body]) -> Body:
    """A body of this form."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        name = "an AdmissionReview" if kind is AdmissionReview else "a request of SkyPilot"
        raise InputError(f"the body is not {name}: {error}") from None


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
