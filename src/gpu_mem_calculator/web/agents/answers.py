"""What each tool answers, in a calculating process: a short text, and a few figures as data.

Files are opened where the process may, and the call names their folder or file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from ...advice.diagnosis.diagnose import diagnose
from ...advice.diagnosis.own_words import changed_words
from ...advice.serving.answers import answers
from ...advice.training.answers import training_answers
from ...catalog.hub.access import access, allow
from ...estimates.calculator import Estimate, full_estimate, with_other_cards
from ...estimates.checked import Checked, CheckQuestion
from ...estimates.fit_verdict import FITS
from ...estimates.several import code_word, taken_together, worst_code
from ...estimates.verdict_words import total_bytes, verdict_line
from ...ledger.secrets import hide
from ...ledger.units import GIB
from ...report.agents import (
    comparison_text,
    diagnosis_text,
    joined,
    plans_text,
    reading_text,
    serving_text,
    training_text,
)
from ...report.comparison import compared
from ...report.recipe_words import recipe_notes
from ...report.serving.words import best_changes
from ...runfile.config import EngineConfig
from ...runfile.find_model.model_size import sized_model
from ...runfile.inference_config import InferenceConfig
from ...runfile.keys.recipes import recipe_settings
from ...runfile.read import rule, section, with_settings
from ...runfile.resolve.resolve_inference import find_server
from ...runfile.resolve.resolve_training import find_engine
from ...runfile.resolve.serving_question import question_keys
from ...runfile.resolve.training_defaults import named_dtype
from ...runfile.text.errors import InputError
from ...runfile.text.files import read_printed
from ...serving import USUAL
from ...tools.logs.snapshot import text_of
from ...tools.read import Asked, read_at_releases
from ...tools.reading.tools import UnknownToolError
from ...tools.releases.apply import with_releases
from ...tools.releases.named import read_at
from ...training.engines import DEFAULT, engine_row
from ..checks import checked_source
from ..pasted_text import door_of
from ..plan_question import plans_reply
from .tools import (
    LOCAL,
    TOOLS,
    CheckArguments,
    CompareArguments,
    DiagnoseArguments,
    EstimateArguments,
    PlanArguments,
    ServeArguments,
)

NO_FILES = "{} opens files, which this server does not; give their text itself"
NO_FILE = re.compile("opens? no files?|no files? (is|are) opened")
OPEN = "give folder, the folder of its files, and they are opened"
RUN = "a run file"  # how one is called that has no name
LONGEST_NAME = 60


class AgentAnswer(Struct, frozen=True):
    """What an agent gets: a short text, and a few figures."""

    text: str
    data: Mapping[str, Any]


def answer(tool: str, body: Any) -> AgentAnswer:
    """The answer of a tool; raises all problems of its arguments at once."""
    kind, given = TOOLS[tool], body if isinstance(body, Mapping) else {}
    needed = {name: hint for name, hint, required in kind.fields() if required}
    missing = [name for name in needed if given.get(name) is None]
    if missing:
        raise InputError([f"{tool} needs {name}: {rule(needed[name])}" for name in missing])
    asked, own = section(tool, kind, given), access()
    files = [name for name in LOCAL if given.get(name) is not None]
    if files and not own.files:
        raise InputError(NO_FILES.format(files[0]))
    allow(replace(own, files=bool(files)))
    try:
        found = ANSWERS[tool](asked)
    except InputError as error:
        closed = own.files and not files and any(NO_FILE.search(one) for one in error.problems)
        raise InputError([*error.problems, *([OPEN] if closed else [])]) from None
    finally:
        allow(own)
    return replace(found, text=hide(found.text))


def check(asked: CheckArguments) -> AgentAnswer:
    """Whether each command of a source fits, and those on one GPU together."""
    question = CheckQuestion(
        hardware={"gpu": str(asked.gpu)} if asked.gpu is not None else {},
        named=_named(asked.at),
        settings=_texts(asked.settings or {}),
    )
    try:
        given, where = _located(asked.source, asked.folder)
        found = checked_source(given, question, where)
    except UnknownToolError as error:
        return AgentAnswer(joined(["cannot tell", *error.problems]), {"verdict": "cannot_tell"})
    if len(found) == 1:
        return AgentAnswer(_checked_text(found[0]), _figures(found[0].estimate))
    shared = taken_together(found)
    word = code_word(worst_code(found, shared))
    together = [f"together: {one.verdict}: {one.text}" for one in shared]
    each = [f"{one.reading.name or one.reading.tool}: {_brief(one)}" for one in found]
    return AgentAnswer(joined([word.replace("_", " "), *together, *each]), {"verdict": word})


def _brief(found: Checked) -> str:
    """The answer for one of several commands: all of it where it does not fit, or is open."""
    if found.result is not None and found.result.verdict == FITS:
        return verdict_line(found.result)
    return _checked_text(found)


def _checked_text(found: Checked) -> str:
    """The answer for one command; changes are in the words of its tool, where it has them."""
    read_as = "" if found.reading.is_own else reading_text(found.reading)
    if found.estimate is None:
        return joined(["cannot tell", *found.problems, read_as])
    run = Asked(run=dict(found.data["run"]), reading=found.reading)
    text = _estimate_text(found.estimate, lambda settings: _own_words(run, settings))
    return joined([text, *found.busy, read_as])


def _own_words(run: Asked, settings: Sequence[str]) -> str:
    words = changed_words(run, settings).replace("\n", "; ")
    return f"add {words}" if words else ""


def _figures(estimate: Estimate | None) -> dict[str, Any]:
    """The verdict, and what it compares in GiB; of a server its users, too."""
    if estimate is None:
        return {"verdict": "cannot_tell"}
    result, serving = estimate.result, estimate.result.serving
    found = {"verdict": result.verdict, "gpu_gib": round((result.gpu_memory_bytes or 0) / GIB, 1)}
    if serving is not None:
        return {**found, "users": serving.users, "context": serving.users_context}
    return {**found, "needs_gib": round(total_bytes(result) / GIB, 1)}


def _estimate_text(
    estimate: Estimate, words: Callable[[Sequence[str]], str], asides: Sequence[str] = ()
) -> str:
    """The answer for an estimate. `words`: what is added for some settings; empty where only the
    command of a remedy can say it.
    """
    if estimate.serves:
        served = answers(estimate)
        changes = best_changes(estimate, served)
        commands = [words(one.setting) or one.command for one in changes]
        return serving_text(estimate, served, commands)
    trained = training_answers(estimate)
    said = [words(one.settings) or _again(one.settings) for one in trained.remedies]
    return training_text(estimate, trained, said, asides)


def _again(settings: Sequence[str]) -> str:
    """Settings as the argument of this name, with which the same question is asked again."""
    return f"settings {json.dumps(with_settings({}, settings))}"


def _options(settings: Sequence[str]) -> str:
    """Settings as options of our command line: a recipe by its name, the others with --set."""
    left, named = list(settings), list[str]()
    for name in ("qlora", "lora"):
        recipe = _texts(recipe_settings(name))
        if set(recipe) <= set(left):
            left, named = [one for one in left if one not in recipe], [f"--{name}"]
    return shlex.join([*named, *(word for one in left for word in ("--set", one))])


def estimate(asked: EstimateArguments) -> AgentAnswer:
    """The estimate of a training, as `gpu-mem-calc quick` makes it."""
    named = {"--gpu": asked.gpu, "--gpus": asked.gpus, "--engine": asked.engine}
    named |= {"--seq-len": asked.seq_len, "--batch-size": asked.batch_size}
    words = ["gpu-mem-calc", "quick", asked.model]
    words += [f"--{asked.method}"] if asked.method in ("lora", "qlora") else []
    words += [f"{word}" for pair in named.items() if pair[1] is not None for word in pair]
    same = shlex.join([*words, *_set(asked.settings or {})])
    found = with_other_cards(full_estimate(_training_run(asked)))
    asides = recipe_notes(found) if asked.method else ()
    text = _estimate_text(found, lambda settings: f"{same} {_options(settings)}", asides)
    return AgentAnswer(text, _figures(found))


def _training_run(asked: EstimateArguments) -> Asked:
    """The run of a model's name or size, with the recipe that is asked for."""
    sized = sized_model(asked.model)
    run = {"model": {"name": sized.name if sized else asked.model}}
    run = with_settings(run, [f"engine.type={asked.engine or DEFAULT}"])
    name = find_engine(EngineConfig(type=run["engine"]["type"])).name
    keys: dict[str, Any] = {"hardware.num_gpus": asked.gpus or 1}
    if sized and sized.num_parameters:
        keys["model.num_parameters"] = sized.num_parameters
    if engine_row(name).zero_hooks:
        keys["engine.zero_stage"] = run["engine"].get("zero_stage", 2)
    card = None if asked.gpu is None else str(asked.gpu)
    keys |= recipe_settings(asked.method or "full", None, name, named_dtype(card))
    own: dict[str, Any] = {"hardware.gpu": card}
    own |= {"training.seq_len": asked.seq_len, "training.batch_size": asked.batch_size}
    keys |= {key: value for key, value in own.items() if value is not None}
    run = with_settings(run, _texts(keys | (asked.settings or {})))
    return Asked(run=run, notes=(sized.note,) if sized else ())


def serve(asked: ServeArguments) -> AgentAnswer:
    """The estimate of a server, as `gpu-mem-calc infer` makes it."""
    engine = asked.engine or USUAL
    run: dict[str, Any] = {"model": {"name": asked.model}, "inference": {"engine": engine}}
    server = find_server(InferenceConfig(engine=engine))
    own: dict[str, Any] = {"hardware.gpu": None if asked.gpu is None else str(asked.gpu)}
    own |= {"hardware.num_gpus": asked.gpus, "inference.quantization": asked.quantization}
    asks = question_keys(server, asked.users, asked.context)
    own |= {f"inference.{key}": value for key, value in asks.items()}
    keys = {key: value for key, value in own.items() if value is not None}
    run = with_settings(run, _texts(keys | (asked.settings or {})))
    named = _named(asked.at)
    found = with_other_cards(full_estimate(with_releases(run, named) if named else run))
    return AgentAnswer(_estimate_text(found, lambda _: ""), _figures(found))


def plan(asked: PlanArguments) -> AgentAnswer:
    """The set-ups that fit, fastest first, with the run file of the best."""
    given = {key: value for key, value in asdict(asked).items() if value is not None}
    found = plans_reply(given, page=False)
    best = found.plans[0] if found.plans else None
    data = {"fits": best.fits_on_gpu, "run": best.run} if best else {"fits": False}
    return AgentAnswer(plans_text(found), data)


def diagnosis(asked: DiagnoseArguments) -> AgentAnswer:
    """Why a run died, by what it printed."""
    if (asked.text is None) == (asked.file is None):
        raise InputError("diagnose needs text or file, one of them")
    path = os.path.join(asked.folder or "", asked.file or "")
    text = asked.text if asked.text is not None else text_of(read_printed(path))
    run, notes = None, tuple[str, ...]()
    door = door_of(asked.gpu, asked.at)
    if asked.run is not None:
        try:
            run = _side(asked.run, asked.gpu, asked.at, asked.folder)
        except InputError as error:
            notes = tuple(f"the run was not read: {one}" for one in error.problems)
    found = diagnose(text, run, door)
    found = replace(found, notes=(*found.notes, *notes))
    cause = found.cause
    data = {"cause": cause.id, "certainty": cause.certainty} if cause else {"cause": None}
    return AgentAnswer(diagnosis_text(found), data)


def compare(asked: CompareArguments) -> AgentAnswer:
    """Two runs, part by part."""
    cards = (asked.gpu_a, asked.gpu_a if asked.gpu_b is None else asked.gpu_b)
    releases = (asked.at_a, asked.at_b or asked.at_a)
    sources = (asked.a, asked.a if asked.b is None else asked.b)
    pairs = [pair for pair in (sources, cards, releases) if pair[0] != pair[1]]
    if not pairs:
        raise InputError("compare needs b, or another card or release: gpu_b or at_b")
    sides = zip(sources, cards, releases, strict=True)
    first, second = (full_estimate(_side(*one, asked.folder)) for one in sides)
    name_a, name_b = (_name(one) for one in pairs[0])
    found = compared((name_a, name_b), first, second)
    return AgentAnswer(
        comparison_text(found), {"a": first.result.verdict, "b": second.result.verdict}
    )


def _name(one: Any) -> str:
    return RUN if isinstance(one, Mapping) else str(one).strip().partition("\n")[0][:LONGEST_NAME]


def _side(source: Any, card: Any, at: str | None, folder: str | None) -> Asked:
    """What one source asks, on a card and at releases that are named."""
    given, where = _located(source, folder)
    return read_at_releases(given, replace(door_of(card, at), folder=where))


def _located(source: Any, folder: str | None) -> tuple[Any, str | None]:
    """A source, as the path of a file where it names one in the folder; and the folder, which a
    model's name does not need.
    """
    if folder is None or not isinstance(source, str) or "\n" in source:
        return source, folder
    path = Path(folder, source.strip())
    if path.is_file():
        return path, folder
    return source, folder if " " in source.strip() else None


def _named(at: str | None) -> Any:
    return None if at is None else read_at([at])


def _texts(settings: Mapping[str, Any]) -> list[str]:
    """Keys with values as `section.key=value`; a name of digits, such as 4090, stays a text."""
    return [f"{key}={_text(value)}" for key, value in settings.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) and not value.isdecimal() else json.dumps(value)


def _set(settings: Mapping[str, Any]) -> Iterator[str]:
    for one in _texts(settings):
        yield from ("--set", one)


ANSWERS: Mapping[str, Callable[[Any], AgentAnswer]] = {
    "check": check,
    "estimate": estimate,
    "serve": serve,
    "plan": plan,
    "diagnose": diagnosis,
    "compare": compare,
}
