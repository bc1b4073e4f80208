"""Asks one question in this process, and holds the laws against its answer."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import shlex
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct, field, to_builtins

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.questions.laws import FITS, SHORT, UNSURE, Checks, plain_laws, result_laws
from tests.questions.question import COMMAND, REST, Question

ANSWERED, REFUSED, UNCERTAIN = "answered", "refused", "cannot tell"
TOO_LONG, CRASHED = "too long", "traceback"
LIMIT = 60  # seconds of one question
CODES = (0, 1, 2, 3)
WORDS = re.compile(r"\b(does not fit|will not start|cannot tell|tight|may fit|fits)\b")
GIVEN_UP = "more than the time limit"


class Outcome(Struct, kw_only=True):
    """What became of a question: how it ended, in how many seconds, and the laws."""

    ended: str
    seconds: float
    sentence: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    broken: list[tuple[str, str]] = field(default_factory=list)


class TooLongError(BaseException):
    """The time limit; no handler of exceptions catches it."""


def ask(question: Question, limit: int = LIMIT) -> Outcome:
    """Ask a question, for at most `limit` seconds."""
    checks, begin = Checks(), time.perf_counter()
    sentence, late = "", [False]
    try:
        with limited(limit, late):
            ended, sentence = _ask(question, checks)
    except TooLongError:
        ended = TOO_LONG
    except Exception as error:
        ended, sentence = CRASHED, _where(error)
    if late[0]:  # the command line reports whatever ends it
        ended, checks = TOO_LONG, Checks()
    checks.hold("an answer or a sentence, no traceback", ended != CRASHED, sentence)
    gc.enable()
    forget()
    seconds = time.perf_counter() - begin
    return Outcome(
        ended=ended,
        seconds=seconds,
        sentence=sentence,
        counts=dict(checks.counts),
        broken=checks.broken,
    )


@contextlib.contextmanager
def limited(limit: int, late: list[bool]) -> Iterator[None]:
    """Raise after some seconds, and note in `late` that it did."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        late[0] = True
        raise TooLongError(GIVEN_UP)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _where(error: Exception) -> str:
    """An exception in one line, with the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__} at {place}: {error}"[:300]


def _ask(question: Question, checks: Checks) -> tuple[str, str]:
    if question.kind == COMMAND:
        return _command(question, checks)
    if question.kind == REST:
        return _rest(question, checks)
    return _python(question, checks)


def _python(question: Question, checks: Checks) -> tuple[str, str]:
    assert question.run is not None
    try:
        result = full_estimate(question.run, replay=question.replay).result
    except InputError as error:
        return _refusal(checks, error.problems)
    data = to_builtins(result)
    result_laws(checks, data)
    if question.more:
        forget()
        again = to_builtins(full_estimate(question.run, replay=question.replay).result)
        checks.hold("the same question twice gives the same", again == data)
        shown = to_builtins(full_estimate(data["run"], replay=question.replay).result)
        kept = shown["allocated_bytes"] == data["allocated_bytes"]
        checks.hold("the run of a result gives the result again", kept, "allocated_bytes")
    return _said(data["verdict"])


def _said(verdict: str) -> tuple[str, str]:
    return (UNCERTAIN if verdict in UNSURE else ANSWERED), ""


def _refusal(checks: Checks, problems: list[str]) -> tuple[str, str]:
    good = problems and all(one.strip() and "\n" not in one for one in problems)
    checks.hold("a refusal is sentences of one line", good, repr(problems)[:200])
    return REFUSED, problems[0] if problems else ""


def _rest(question: Question, checks: Checks) -> tuple[str, str]:
    """A task of the service, as a calculating process runs it."""
    from gpu_mem_calculator.web.worker import reply_or_refusal
    from gpu_mem_calculator.web.worker_messages import TaskRequest

    body = json.dumps(question.run).encode()
    reply = reply_or_refusal(TaskRequest(task=question.words[0], body=body, options={}))
    data = json.loads(reply.body)
    if reply.status != 200:
        return _refusal(checks, data["problems"])
    if question.words[0] in ("calculate", "infer"):
        result_laws(checks, data)
        result = to_builtins(full_estimate(question.run or {}).result)
        same = all(data[key] == result[key] for key in ("needs_bytes", "verdict", "breakdown"))
        checks.hold("the service says what Python says", same)
    else:
        plain_laws(checks, data)
    return ANSWERED, ""


def run_command(words: tuple[str, ...]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in the current folder."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def folder_of(question: Question) -> Iterator[None]:
    """A folder of its own with the files that a command names, as the current one."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        files = dict(question.files)
        if question.run is not None:
            files["run.json"] = json.dumps(question.run)
        for path, text in files.items():
            target = Path(name, path)
            if target.is_absolute() and not target.is_relative_to(name):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", errors="replace")
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(before)


def _command(question: Question, checks: Checks) -> tuple[str, str]:
    with folder_of(question):
        code, out, err = run_command(question.words)
        checks.hold("the exit code is 0, 1, 2 or 3", code in CODES, f"{code}: {err[:200]}")
        checks.hold("no traceback is printed", "Traceback (most" not in out + err, err[-200:])
        if code == 2:
            lines = err.splitlines()
            good = lines and all(line.strip() for line in lines)
            checks.hold("a refusal is sentences of one line", good, err[:200])
            _accepted_by_plan(question, checks, err)
            return REFUSED, lines[0] if lines else ""
        if code not in CODES:
            return CRASHED, err[-300:]
        checks.hold("an answer is printed", (out + err).strip(), f"exit code {code}")
        if question.more:
            _other_doors(question, checks, code, out)
        if question.name == "plan" and "--format" not in question.words:
            _plans(question, checks)
    return (UNCERTAIN if code == 3 else ANSWERED), err.strip().partition("\n")[0]


def _accepted_by_plan(question: Question, checks: Checks, err: str) -> None:
    """`plan --candidates` takes what an estimate takes; without a card it says what is missing."""
    if question.name == "plan --candidates" and question.run is not None:
        with contextlib.suppress(InputError):
            found = full_estimate(question.run, replay=False)
            named = found.resolved.hardware.card or "names no GPU" not in err
            checks.hold("plan accepts what estimate accepts", not named, err[:200])


def _json(words: tuple[str, ...]) -> tuple[int, Any]:
    code, out, _ = run_command(words)
    try:
        return code, json.loads(out)
    except ValueError:
        return code, None


def _with_options(words: tuple[str, ...], *options: str) -> tuple[str, ...]:
    """The words with more options: of `check` before the command, of other verbs at the end."""
    return (words[0], *options, *words[1:]) if words[0] == "check" else (*words, *options)


def _other_doors(question: Question, checks: Checks, code: int, text: str) -> None:
    """The same as JSON, twice, with --check, and in Python."""
    words = question.words
    if {"--help", "--explain", "--quiet"} & {*words} or words[0] == "explain":
        return
    second, again, _ = run_command(words)
    checks.hold("the same question twice gives the same", (second, again) == (code, text))
    data_code, data = _json(_with_options(words, "--format", "json"))
    checks.hold("JSON has the exit code of the table", data_code == code, f"{data_code} {code}")
    if not isinstance(data, dict):
        checks.hold("the answer as JSON is JSON", data is not None or code == 3)
        return
    result = data.get("result", data)
    if "breakdown" not in result:
        return
    result_laws(checks, result)
    verdict = data["verdict"]
    if words[0] == "check":
        _agreement(checks, verdict, code, text)
    else:
        _checked(words, checks, verdict)
        _python_says_the_same(checks, result)
        _remedies(checks, result)


def _agreement(checks: Checks, verdict: str, code: int, text: str) -> None:
    """JSON's verdict, the exit code and the first line that has a verdict say the same."""
    wanted = 0 if verdict in FITS else 1 if verdict in SHORT else 3
    checks.hold("JSON's verdict is the exit code", wanted == code, f"{verdict} {code}")
    found = WORDS.search(text)
    if found is None:
        return
    word = found[1].replace("will not start", "does not fit")
    first = 0 if word in FITS else 1 if word in SHORT else 3
    checks.hold("the first line's verdict is the exit code", first == code, f"{word} {code}")


def _checked(words: tuple[str, ...], checks: Checks, verdict: str) -> None:
    if "--check" in words:
        return
    code, text, _ = run_command((*words, "--check"))
    if code in (0, 1, 3):
        wanted = 0 if verdict in FITS else 1 if verdict in SHORT else code
        checks.hold("JSON's verdict is the exit code", wanted == code, f"{verdict} {code}")
        _agreement(checks, verdict if verdict in (*FITS, *SHORT) else "", code, text)


def _python_says_the_same(checks: Checks, result: Mapping[str, Any]) -> None:
    """The run of an answer, asked again in Python."""
    forget()
    try:
        again = to_builtins(full_estimate(result["run"]).result)
    except InputError as error:
        checks.hold("the run of a result is accepted", False, str(error)[:200])
        return
    keys = ("allocated_bytes", "needs_bytes", "reserved_bytes", "verdict", "gpu_memory_bytes")
    other = {key: (result[key], again[key]) for key in keys if result[key] != again[key]}
    checks.hold("the command line says what Python says", not other, f"{other}")


def _remedies(checks: Checks, result: Mapping[str, Any]) -> None:
    """The command of a remedy is accepted, and fits where it says so."""
    for remedy in result.get("remedies", ())[:2]:
        words = tuple(shlex.split(remedy["command"])[1:])
        code, out, err = run_command((*words, "--check", "--quiet"))
        checks.hold("a remedy is accepted", code != 2, f"{remedy['command']}: {err}"[:300])
        if code != 2:
            fits = code == 0 or remedy.get("verdict", "fits") not in FITS
            checks.hold("a remedy fits", fits, f"{remedy['command']}: {out}"[:300])


def _plans(question: Question, checks: Checks) -> None:
    """The plans of a question: each run is accepted, and takes what the plan says."""
    _, data = _json((*question.words, "--format", "json"))
    if not isinstance(data, dict) or "plans" not in data:
        return
    plain_laws(checks, {"plans": data["plans"]})
    for plan in data["plans"][:2]:
        found = full_estimate(plan["run"]).result
        same = found.needs_bytes == plan["needs_bytes"] or plan["needs_bytes"] is None
        checks.hold("a plan is what its run file gives", same, f"{found.needs_bytes}")
        parts = plan["step_seconds"].get("parts") or {}
        above = [key for key, value in parts.items() if value > plan["step_seconds"]["estimate"]]
        checks.hold("no part of a step is above the step", not above, f"{parts}")
