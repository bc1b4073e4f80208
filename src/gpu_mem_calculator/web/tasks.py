"""The tasks of a calculating process.

A task is a function of the client's JSON and the options of its address. Its result is sent as
JSON, or as it is where it is a `TextPage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..advice.serving.answers import Answers, answers
from ..advice.training.answers import longest_length, training_answers
from ..estimates.calculator import Estimate, full_estimate, with_other_cards
from ..estimates.explain.explain import explain
from ..report.data import answers_data
from ..report.html import html_report
from ..report.live import look
from ..report.longest_sequence import longest_sequence_words
from ..report.remedies_html import remedies_section
from ..report.serving.html import serving_page
from ..report.standalone import standalone
from ..runfile.read import with_settings
from ..runfile.text.errors import InputError
from ..runfile.text.json_text import parse_json
from .changes import offered_changes
from .export import export
from .options import PAGES, REPLAYS, THEMES, Options, numbers, one_of, width
from .pasted_text import read_pasted
from .plan_question import plans_reply
from .worker_messages import TaskReply, TaskRequest

Task = Callable[[Any, Options], Any]
SAMPLE = {"model": {"name": "llama2-7b"}, "engine": {"type": "fsdp"}, "hardware": {"num_gpus": 8}}
NO_SERVER = (
    'the run has no inference section; add one, such as {"engine": "vllm"}, or use calculate'
)
SERVER = {"model": {"name": "llama2-7b"}, "inference": {"engine": "vllm"}}


class TextPage(Struct, frozen=True):
    """Text that is sent unchanged, with its media type and a file name for saving it."""

    text: str
    media: str
    filename: str = ""


def answer(ask: TaskRequest) -> TaskReply:
    """The reply to one request; its errors are turned into refusals by the worker."""
    result = TASKS[ask.task](_data(ask.body), ask.options)
    if isinstance(result, TextPage):
        return TaskReply(200, result.text.encode(), result.media, result.filename)
    return TaskReply(200, msgspec.json.encode(result))


def _data(body: bytes) -> Any:
    """The client's JSON; an empty object where there is no body."""
    if not body:
        return {}
    try:
        return parse_json(body.decode())
    except RecursionError:
        raise InputError("the body is not JSON: it is nested too deep") from None
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from None


def _estimate(body: Any, *, replay: bool = True) -> Estimate:
    """The estimate; without `replay` that of the ledger alone, whose verdict is
    `cannot_tell` where a replay must decide.
    """
    found = full_estimate(body, replay=replay)
    return with_other_cards(found) if replay else found


def calculate(body: Any, _options: Options) -> Any:
    """The estimate, with torch's allocator replayed."""
    return _estimate(body).result


def validate(body: Any, _options: Options) -> Any:
    """Whether a run file is valid, with every problem at once."""
    try:
        result = _estimate(body, replay=False).result
    except InputError as error:
        return {"valid": False, "errors": error.problems, "warnings": [], "assumed": []}
    return {"valid": True, "errors": [], "warnings": result.warnings, "assumed": result.assumed}


def explain_entries(body: Any, _options: Options) -> Any:
    """Every entry of the ledger with its formula."""
    return explain(_estimate(body, replay=False))


def infer(body: Any, options: Options) -> Any:
    """A server's estimate, its table of contexts and sequences, its speed and changes to try."""
    table = (numbers(options, "contexts"), numbers(options, "concurrency"))
    estimate = _estimate(body)
    if not estimate.serves:
        raise InputError(NO_SERVER)
    return answers_data(estimate.result, answers(estimate, *table))


def what_ifs(body: Any, _options: Options) -> Any:
    """Changes to the run: the bytes that each saves, and its verdict."""
    return {"changes": offered_changes(_estimate(body))}


def room(body: Any, _options: Options) -> Any:
    """How far the sequence can grow, or must shrink; empty for a server, whose table says it."""
    estimate = _estimate(body)
    return {
        "room": ""
        if estimate.served
        else longest_sequence_words(estimate, longest_length(estimate))
    }


def page_parts(body: Any, options: Options) -> Any:
    """What the page shows: the result, the picture and pieces of HTML."""
    pixels, replayed = width(options), one_of(options, "replay", REPLAYS) == REPLAYS[1]
    estimate = _estimate(body, replay=replayed)
    decided = replayed or bool(estimate.served)
    parts = look(estimate, _answers(estimate, changes=decided), width=pixels, pending=not replayed)
    return {"result": estimate.result, **parts}


def report(body: Any, _options: Options) -> Any:
    """The report as one HTML file."""
    estimate = _estimate(body)
    serving = _answers(estimate)
    if serving is None:
        more = remedies_section(estimate, training_answers(estimate))
        page = html_report(estimate, more)
    else:
        page = serving_page(estimate, serving)
    return TextPage(page, "text/html; charset=utf-8", "report.html")


def picture(_body: Any, options: Options) -> Any:
    """An SVG of the run that an address describes, `section.key=value` for each setting."""
    pixels, theme = width(options), one_of(options, "theme", THEMES)
    settings = [f"{key}={value}" for key, value in options.items() if "." in key]
    estimate = _estimate(with_settings({}, settings))
    return TextPage(standalone(estimate, width=pixels, theme=theme), "image/svg+xml")


def plans(body: Any, options: Options) -> Any:
    """The plans for a question, fastest first."""
    return plans_reply(body, page=one_of(options, "page", PAGES) == PAGES[1])


def import_text(body: Any, _options: Options) -> Any:
    """A pasted text as a run file."""
    text = body.get("text") if isinstance(body, Mapping) else None
    if not isinstance(text, str) or len(body) > 1:
        raise InputError('the body must be an object with a text alone: {"text": "..."}')
    return read_pasted(text)


def warm_up(_body: Any, _options: Options) -> Any:
    """Run a training and a serving estimate, so that the first client does not wait for imports."""
    for run in (SAMPLE, SERVER):
        page_parts(run, {})
    return {}


def _answers(estimate: Estimate, *, changes: bool = True) -> Answers | None:
    return answers(estimate, changes=changes) if estimate.serves else None


TASKS: dict[str, Task] = {
    "warm": warm_up,
    "calculate": calculate,
    "replay": calculate,
    "validate": validate,
    "explain": explain_entries,
    "infer": infer,
    "what-ifs": what_ifs,
    "room": room,
    "look": page_parts,
    "report": report,
    "picture": picture,
    "plan": plans,
    "import": import_text,
    "export": export,
}
