"""A calculating process: it runs one task after another from its pipe, until the pipe closes.

A task is a function of the client's JSON and the options of its address. Its result is sent as
JSON, or as it is where it is a `TextPage`. It reads no file and no address that a client names,
except on the hosts that the operator allows. An interrupt ends the running task and nothing else;
the memory of the process is limited.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import IO, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..advice.one_change import pasted_line
from ..advice.serving.answers import answers
from ..advice.training.answers import longest_length, training_answers
from ..catalog.hub.access import Access, allow, endpoint
from ..estimates.calculator import Estimate, full_estimate, with_other_cards
from ..estimates.explain.explain import explain
from ..estimates.fit_verdict import UNSURE
from ..ledger.schema_version import SCHEMA_VERSION
from ..ledger.units import MIB
from ..report.data import answers_data
from ..report.html import html_report, remedies_section
from ..report.live import look
from ..report.longest_sequence import longest_sequence_words
from ..report.serving.html import serving_page
from ..report.standalone import standalone
from ..runfile.read import with_settings
from ..runfile.text.errors import InputError, MissingExtraError
from ..runfile.text.files import is_pickle
from ..runfile.text.json_text import parse_json
from .checks import DeniedError, check, kubernetes, skypilot
from .export import export
from .logs import log_fault, start_logs
from .offered_changes import offered_changes
from .offers import refused_choices, settings_that_hold
from .options import Options, is_true, numbers, one_of, width, window
from .pasted_text import FilesWantedError, asked, diagnosed, read_pasted, text_and_files
from .plan_question import plan_events, plans_reply, warm_plan
from .settings import allowed_hosts, from_environment, limit_memory
from .worker_messages import (
    EVENTS,
    FILES,
    GENTLE,
    HEAD,
    TaskReply,
    TaskRequest,
    event,
    fault,
    frame,
    gzipped,
    late,
    refusal,
    unheard,
)

Task = Callable[[Any, Options], Any]
Tell = Callable[[TaskReply], None]
SIDES = ("a", "b")  # of a comparison
VERSIONS = {"schema_version", "api_version"}  # fields that say a version
SAMPLE = {"model": {"name": "llama2-7b"}, "engine": {"type": "fsdp"}, "hardware": {"num_gpus": 8}}
NO_SERVER = (
    'the run has no inference section; add one, such as {"engine": "vllm"}, or use calculate'
)
SERVER = {"model": {"name": "llama2-7b"}, "inference": {"engine": "vllm"}}
LOOKUP_SHARE = 0.8  # of a task's time may be spent on looking a model up
MOST_FETCHED = 64 * MIB  # bytes of one download
PACK_FROM_BYTES = 8192  # replies from this size on are gzipped
TOO_LARGE = "this takes more memory than the service gives one request; make the run smaller"


class TextPage(Struct, frozen=True):
    """Text that is sent unchanged, with its media type and a file name for saving it."""

    text: str
    media: str
    filename: str = ""


def answer(ask: TaskRequest, tell: Tell) -> TaskReply:
    """The reply to one request; its errors are turned into refusals by the worker.

    tell: takes the parts of a reply that streams
    """
    is_file = ask.task == "diagnose" and is_pickle(ask.body)
    if ask.streams:
        done = plan_events(
            _data(ask.body),
            page=is_true(ask.options, "page"),
            seconds=ask.seconds,
            tell=lambda name, data: tell(TaskReply(200, event(name, data), EVENTS, more=True)),
        )
        return TaskReply(200 if done.complete else 206, event("done", done), EVENTS)
    result = TASKS[ask.task](ask.body if is_file else _data(ask.body), ask.options)
    if isinstance(result, TextPage):
        return TaskReply(200, result.text.encode(), result.media, result.filename)
    return TaskReply(200, answer_json(result))


def answer_json(result: Any) -> bytes:
    """An answer as JSON, with the version of its fields in front where it has none; what another
    protocol asks for as it is.
    """
    text = msgspec.json.encode(result)
    fields = result.__struct_fields__ if isinstance(result, Struct) else result
    if not fields or not isinstance(fields, tuple | dict) or VERSIONS & {*fields}:
        return text
    return b'{"schema_version":%d,' % SCHEMA_VERSION + text[1:]


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
    found = full_estimate(asked(body), replay=replay)
    return with_other_cards(found) if replay else found


def calculate(body: Any, options: Options) -> Any:
    """The estimate, by a replay of torch's allocator, with the change that fits in its summary; or
    by the bounds of the ledger alone.
    """
    if not is_true(options, "replay", otherwise="true"):
        return _estimate(body, replay=False).result
    estimate = _estimate(body)
    return replace(estimate.result, summary=pasted_line(estimate))


def replayed(body: Any, _options: Options) -> Any:
    """The estimate with torch's allocator replayed, without a look for what would fit."""
    return _estimate(body).result


def validate(body: Any, _options: Options) -> Any:
    """Whether a run file is valid, with every problem at once."""
    try:
        result = _estimate(body, replay=False).result
    except InputError as error:
        words = f"not valid: {error.problems[0]}"
        told = {"verdict": UNSURE, "summary": words, "warnings": [], "assumed": []}
        return {"valid": False, "errors": error.problems, **told}
    told = {key: getattr(result, key) for key in ("verdict", "summary", "warnings", "assumed")}
    return {"valid": True, "errors": [], **told}


def explain_entries(body: Any, _options: Options) -> Any:
    """Every entry of the ledger with its formula."""
    return explain(_estimate(body, replay=False))


def compare(body: Any, _options: Options) -> Any:
    """Two runs side by side."""
    pair = isinstance(body, Mapping) and body.keys() == {*SIDES}
    sides = [body[side] for side in SIDES] if pair else [None]
    if not all(isinstance(one, Mapping) for one in sides):
        raise InputError("the body must be an object with two runs alone: a and b")
    from ..report.comparison import compared, comparison_data  # few ask for it

    first, second = (_estimate(one) for one in sides)
    return comparison_data(compared(("A", "B"), first, second))


def diagnose(body: Any, options: Options) -> Any:
    """Why a run died, by what it printed, or by torch's memory snapshot."""
    from ..report.diagnosis import diagnosis_data  # few ask for it

    return diagnosis_data(diagnosed(body, options))


def infer(body: Any, options: Options) -> Any:
    """A server's estimate, its table of contexts and sequences, its speed and changes to try."""
    table = (numbers(options, "contexts"), numbers(options, "concurrency"))
    estimate = _estimate(body)
    if not estimate.serves:
        raise InputError(NO_SERVER)
    return answers_data(estimate, answers(estimate, *table))


def what_ifs(body: Any, _options: Options) -> Any:
    """Changes to the run: the bytes that each saves, and its verdict."""
    return {"changes": offered_changes(_estimate(body))}


def choices(body: Any, _options: Options) -> Any:
    """Which choices a run would be refused with, and why."""
    return {"refused": refused_choices(body)}


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
    pixels, replayed = width(options), is_true(options, "replay")
    estimate = _estimate(body, replay=replayed)
    decided = replayed or bool(estimate.served)
    found = answers(estimate, changes=decided) if estimate.serves else None
    shown = window(options)
    parts = look(estimate, found, width=pixels, pending=not replayed, window=shown)
    return {"result": estimate.result, "settings": settings_that_hold(estimate), **parts}


def report(body: Any, _options: Options) -> Any:
    """The report as one HTML file."""
    estimate = _estimate(body)
    if estimate.serves:
        page = serving_page(estimate, answers(estimate))
    else:
        page = html_report(estimate, remedies_section(estimate, training_answers(estimate)))
    return TextPage(page, "text/html; charset=utf-8", "report.html")


def picture(_body: Any, options: Options) -> Any:
    """An SVG of the run that an address describes, `section.key=value` for each setting."""
    pixels, theme = width(options), one_of(options, "theme")
    settings = [f"{key}={value}" for key, value in options.items() if "." in key]
    estimate = _estimate(with_settings({}, settings))
    return TextPage(standalone(estimate, width=pixels, theme=theme), "image/svg+xml")


def plans(body: Any, options: Options) -> Any:
    """The plans for a question, fastest first."""
    return plans_reply(body, page=is_true(options, "page"))


def import_text(body: Any, _options: Options) -> Any:
    """A pasted text as a run file, with the files that it names beside it."""
    return read_pasted(*text_and_files(body))


def agent(body: Any, options: Options) -> Any:
    """The answer of a tool that an agent calls."""
    from .agents.answers import answer as agent_answer  # few ask for it

    return agent_answer(options["tool"], body)


def warm_up(_body: Any, _options: Options) -> Any:
    """Run a training and a serving estimate, so that the first client does not wait for imports."""
    for run in (SAMPLE, SERVER):
        page_parts(run, {})
    return {}


TASKS: dict[str, Task] = {
    "warm": warm_up,
    "agent": agent,
    "warm-plan": warm_plan,
    "calculate": calculate,
    "check": check,
    "admission/kubernetes": kubernetes,
    "admission/skypilot": skypilot,
    "compare": compare,
    "diagnose": diagnose,
    "replay": replayed,
    "validate": validate,
    "explain": explain_entries,
    "infer": infer,
    "what-ifs": what_ifs,
    "choices": choices,
    "room": room,
    "look": page_parts,
    "report": report,
    "picture": picture,
    "plan": plans,
    "import": import_text,
    "export": export,
}


class TaskInterrupted(BaseException):
    """The client has left, or the time limit is over."""


class WorkerProcess:
    """Reads requests from `source` and writes replies to `target`."""

    def __init__(self, source: IO[bytes], target: IO[bytes]) -> None:
        self.source, self.target = source, target
        self.busy = self.sending = False

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """Signal handler: end the running task, if there is one; a part is sent in whole."""
        if self.busy:
            self.busy = False
            if not self.sending:
                raise TaskInterrupted

    def run(self) -> None:
        """Answer requests until the service closes the pipe."""
        while head := self.source.read(HEAD.size):
            data = self.source.read(*HEAD.unpack(head))
            self.send(self.reply(msgspec.msgpack.decode(data, type=TaskRequest)))

    def reply(self, ask: TaskRequest) -> TaskReply:
        """The reply to a request; an empty one where it was interrupted."""
        try:
            self.busy = True
            return reply_or_refusal(ask, self.tell)
        except TaskInterrupted:
            return TaskReply(0, b"")  # nobody reads it
        finally:
            self.busy = False

    def tell(self, part: TaskReply) -> None:
        """Send a part of the running task's reply."""
        self.sending = True
        self.send(part)
        self.sending = False
        if not self.busy:
            raise TaskInterrupted

    def send(self, reply: TaskReply) -> None:
        """Write one reply and flush it."""
        self.target.write(frame(reply))
        self.target.flush()


def reply_or_refusal(ask: TaskRequest, tell: Tell = unheard) -> TaskReply:
    """The task's reply, or the refusal for the error it raised."""
    try:
        reply = answer(ask, tell)
        packs = ask.packs and not ask.streams and len(reply.body) >= PACK_FROM_BYTES
        return gzipped(reply) if packs else reply
    except DeniedError as error:
        return refusal(400, error.problems)
    except FilesWantedError as error:
        return refusal(422, error.problems, error.files)
    except MissingExtraError as error:
        return refusal(501, error.problems)
    except InputError as error:
        return refusal(422, error.problems)
    except TimeoutError:
        return refusal(504, [late(ask.seconds)])
    except MemoryError:
        return refusal(413, [TOO_LARGE])
    except Exception as error:
        reply = fault()
        log_fault(reply.fault, error)
        return reply


def main() -> None:
    """Answer on stdin and stdout; anything that prints goes to stderr."""
    settings = from_environment()
    start_logs(settings.log_level)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would take address space
    limit_memory(settings)
    seconds = LOOKUP_SHARE * float(sys.argv[1])
    if GENTLE in sys.argv and hasattr(os, "nice"):  # not on Windows
        os.nice(3)
    files = FILES in sys.argv  # an agent's tool still opens none that its call does not name
    allow(
        Access(
            files=files,
            hosts=allowed_hosts(settings, endpoint()),
            seconds=seconds,
            size=MOST_FETCHED,
        )
    )
    process = WorkerProcess(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, process.interrupt)
    first = reply_or_refusal(TaskRequest("warm-plan" if GENTLE in sys.argv else "warm", b"", {}))
    gc.freeze()  # what is loaded now stays: the garbage collector need not visit it
    process.send(first)
    process.run()


if __name__ == "__main__":
    main()
