"""Keys of a run file that a user fixes or varies, in any of their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from .... import serving
from ....runfile.own_names import is_setting, own_names, with_setting
from ....runfile.read import run_file_problems
from ....runfile.text.errors import InputError, nearest, quoted
from ....training import engines
from ..answers.question import PlanQuestion
from ..answers.serving_question import ServingQuestion

Question = TypeVar("Question", PlanQuestion, ServingQuestion)
# Short names of keys; `{}` is the section that has the sizes of parallelism.
SHORT = {
    "tp": "{}.tensor_parallel_size",
    "pp": "{}.pipeline_parallel_size",
    "cp": "{}.context_parallel_size",
    "ep": "{}.expert_parallel_size",
    "dp": "{}.data_parallel_size",
    "vpp": "{}.virtual_pipeline_size",
    "micro_batch": "training.batch_size",
    "zero": "engine.zero_stage",
    "checkpointing": "training.activation_checkpointing",
}
ENGINES = ("engine", "engine.type", "inference.engine")  # keys that name engines
SEQUENCE = "training.seq_len"


def engine_choice(names: Iterable[str], *, served: bool = False) -> tuple[str, ...]:
    """Engines by any of their spellings, once each; servers where `served`."""
    known = serving.spellings() if served else engines.spellings()
    found = []
    for name in (one.strip() for text in names for one in str(text).split(",")):
        if name.lower() not in known:
            what = "server" if served else "training engine"
            raise InputError(f"{name!r} is not a known {what}{nearest(name, known)}")
        found.append(known[name.lower()])
    return tuple(dict.fromkeys(found))


def with_keys(
    asked: Question, fix: Mapping[str, Any], vary: Mapping[str, Sequence[Any]]
) -> Question:
    """The question with keys that are fixed or varied, each checked as in a run file.

    Keys of model and hardware, the engine and the sequence become fields of the question.
    """
    served = isinstance(asked, ServingQuestion)
    engine_names = [*_listed(fix), *(one for text in _listed(vary) for one in text)]
    fixed = own_keys({k: v for k, v in fix.items() if k not in ENGINES}, served=served)
    varied = _varied({k: v for k, v in vary.items() if k not in ENGINES}, served=served)
    both = sorted(fixed.keys() & varied.keys())
    if both:
        raise InputError(f"{both[0]} is fixed and varied; leave one of them out")
    changes: dict[str, Any] = {}
    if engine_names:
        changes["engines"] = engine_choice(engine_names, served=served)
    if SEQUENCE in fixed and not served:
        changes["seq_len"] = fixed.pop(SEQUENCE)
    for name in ("model", "hardware"):
        own = {key: fixed.pop(key) for key in list(fixed) if key.startswith(f"{name}.")}
        values = {key.partition(".")[2]: value for key, value in own.items()}
        changes |= {name: {**getattr(asked, name), **values}} if own else {}
    return replace(asked, fix={**asked.fix, **fixed}, vary={**asked.vary, **varied}, **changes)


def _listed(values: Mapping[str, Any]) -> list[Any]:
    """The values of the keys that name engines."""
    return [values[key] for key in ENGINES if key in values]


def own_keys(values: Mapping[str, Any], *, served: bool = False) -> dict[str, Any]:
    """Values by a run file's own keys, as `section.key`; other names become ours."""
    data: dict[str, Any] = {"inference": {}} if served else {}
    for name, value in values.items():
        key = SHORT.get(name, name).format("inference" if served else "parallelism")
        if "." not in key and not served and not is_setting(key):
            hint = nearest(name, SHORT) or "; write section.key, as in a run file"
            raise InputError(f"{name!r} is not a known key{hint}")
        with_setting(data, key, value)
    data, problems = own_names(data)
    named = {**data, "model": {"name": "-", **(data.get("model") or {})}}
    problems = problems or list(run_file_problems(named))
    if problems:
        raise InputError(problems[0])
    return {f"{name}.{key}": one for name, keys in data.items() for key, one in keys.items()}


def _varied(vary: Mapping[str, Sequence[Any]], *, served: bool) -> dict[str, list[Any]]:
    """The values of each varied key, by a run file's own keys."""
    found: dict[str, list[Any]] = {}
    for name, values in vary.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"vary {name}={quoted(values)} must be a list of values to try")
        for value in values:
            for key, one in own_keys({name: value}, served=served).items():
                found.setdefault(key, []).append(one)
    return found
