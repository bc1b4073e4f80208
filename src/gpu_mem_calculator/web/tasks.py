"""What a calculating process can be asked, and what it answers.

A task is a function of the client's JSON and the words of its address. What it returns is sent as
JSON, or as it is where it is a `Page`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..core.answers import Answers, answers
from ..core.calculator import Estimate, full_estimate
from ..core.changes import all_changes
from ..core.errors import InputError
from ..core.explain import explain
from ..core.runfile import with_settings
from ..report.data import answers_data
from ..report.html import html_report
from ..report.live import look
from ..report.serving_html import serving_page
from ..report.standalone import standalone
from .frames import Ask, Reply
from .pasted import pasted
from .reference import REFERENCE
from .reference_bodies import from_reference

Options = Mapping[str, str]
Task = Callable[[Any, Options], Any]
WIDTHS = (320, 1600)
MOST_NUMBERS = 64  # contexts, and concurrencies
THEMES = ("light", "dark")
SAMPLE = {"model": {"name": "llama2-7b"}, "engine": {"type": "fsdp"}, "hardware": {"num_gpus": 8}}
SERVER = {"model": {"name": "llama2-7b"}, "inference": {"engine": "vllm"}}


class Page(Struct, frozen=True):
    """Text that is sent as it is."""

    text: str
    media: str
    filename: str = ""


def answer(ask: Ask) -> Reply:
    """The reply to one question; raises what the process turns into a sentence."""
    found = TASKS[ask.task](_data(ask.body), ask.options)
    if isinstance(found, Page):
        return Reply(200, found.text.encode(), found.media, found.filename)
    return Reply(200, msgspec.json.encode(found))


def _data(body: bytes) -> Any:
    """The client's JSON; nothing where there is no body."""
    if not body:
        return {}
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(
            [f"the body is not JSON: {str(error) or 'it is nested too deep'}"]
        ) from None


def _estimate(body: Any, *, replay: bool = False) -> Estimate:
    return full_estimate(from_reference(body), replay=replay)


def calculate(body: Any, _options: Options) -> Any:
    """The ledger's result."""
    return _estimate(body).result


def replay(body: Any, _options: Options) -> Any:
    """The result with what torch's allocator adds."""
    return _estimate(body, replay=True).result


def validate(body: Any, _options: Options) -> Any:
    """Every problem of a run file at once."""
    try:
        result = _estimate(body).result
    except InputError as error:
        return {"valid": False, "errors": error.problems, "warnings": [], "assumed": []}
    return {"valid": True, "errors": [], "warnings": result.warnings, "assumed": result.assumed}


def explained(body: Any, _options: Options) -> Any:
    """Every entry of the ledger with its formula."""
    return explain(_estimate(body))


def infer(body: Any, options: Options) -> Any:
    """A server: its result, the table of contexts and sequences, speed, what if."""
    asked = (_numbers(options, "contexts"), _numbers(options, "concurrency"))
    estimate = _estimate(body)
    if _answers(estimate) is None:
        raise InputError(["the run has no inference section; add one, such as "
                          '{"engine": "vllm"}, or use calculate'])  # fmt: skip
    return answers_data(estimate.result, answers(estimate, *asked))


def what_ifs(body: Any, _options: Options) -> Any:
    """One change at a time, and what each saves."""
    return {"changes": all_changes(_estimate(body))}


def looked_at(body: Any, options: Options) -> Any:
    """What the page shows: the numbers, the picture, the parts."""
    width = _width(options)
    with_replay = _one_of(options, "replay", ("false", "true")) == "true"
    estimate = _estimate(body, replay=with_replay)
    found = look(estimate, _answers(estimate), width=width, pending=not with_replay)
    return {"result": estimate.result, **found}


def report(body: Any, _options: Options) -> Any:
    """The report as one HTML file."""
    estimate = _estimate(body, replay=True)
    found = _answers(estimate)
    made = html_report(estimate) if found is None else serving_page(estimate, found)
    return Page(made, "text/html; charset=utf-8", "report.html")


def picture(_body: Any, options: Options) -> Any:
    """The picture of a run that an address describes, `section.key=value` for each setting."""
    width, theme = _width(options), _one_of(options, "theme", THEMES)
    settings = [f"{key}={value}" for key, value in options.items() if "." in key]
    estimate = _estimate(with_settings({}, settings))
    return Page(standalone(estimate, width=width, theme=theme), "image/svg+xml")


def imported(body: Any, _options: Options) -> Any:
    """A pasted text as a run file."""
    text = body.get("text") if isinstance(body, Mapping) else None
    if not isinstance(text, str):
        raise InputError(['the body must be an object such as {"text": "..."}'])
    return pasted(text)


def warm(_body: Any, _options: Options) -> Any:
    """What every first question would wait for."""
    for run in (SAMPLE, SERVER):
        calculate(copy.deepcopy(run), {})
        looked_at(copy.deepcopy(run), {})
    return {}


def _answers(estimate: Estimate) -> Answers | None:
    serves = estimate.resolved.run.new_tokens is not None
    return answers(estimate) if serves else None


def _one_of(options: Options, name: str, words: tuple[str, ...]) -> str:
    word = options.get(name, words[0])
    if word not in words:
        raise InputError([f"{name}={word!r} must be {' or '.join(words)}"])
    return word


def _width(options: Options) -> int:
    low, high = WIDTHS
    text = options.get("width", "1000")
    if not text.isascii() or not text.isdigit() or not low <= int(text[:9]) <= high:
        raise InputError([f"width={text[:20]!r} must be a whole number from {low} to {high}"])
    return int(text)


def _numbers(options: Options, name: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    text = options.get(name, "")
    pieces = [piece.strip() for piece in text.split(",")] if text else []
    if len(pieces) > MOST_NUMBERS:
        raise InputError([f"{name} has {len(pieces)} numbers, and may have {MOST_NUMBERS}"])
    for piece in pieces:
        if not (piece.isascii() and piece.isdigit() and len(piece) <= 9 and int(piece)):
            raise InputError([f"{name}: {piece[:20]!r} must be a whole number, 1 or more"])
    return tuple(map(int, pieces))


TASKS: dict[str, Task] = {
    "warm": warm,
    "calculate": calculate,
    "replay": replay,
    "validate": validate,
    "explain": explained,
    "infer": infer,
    "what-ifs": what_ifs,
    "look": looked_at,
    "report": report,
    "picture": picture,
    "import": imported,
    **REFERENCE,
}
