"""A run file with a `program` section: the tool's own arguments become keys of the run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ..ledger.quoting import quoted
from ..ledger.remember import remembered
from ..runfile.config import ModelConfig
from ..runfile.find_model.model_facts import shape_facts
from ..runfile.find_model.model_source import find_model
from ..runfile.program import TRANSLATED, ModelFacts, Program, Setup, Translation
from ..runfile.read import Releases
from ..runfile.text.errors import InputError, nearest
from .translation.tools import translate

MOST_KEPT_BYTES = 1 << 16  # of a program whose translation is remembered
MOST_KEPT = 256  # translations: those of a search among them
TranslationKey = tuple[Program, int, bool, ModelFacts, dict[str, str]]
RECOMPUTED = ("activation_checkpointing", "recompute")  # of `training`


def read_program(values: Any) -> Program:
    """A checked `program` section; raises all problems of its form at once."""
    if not isinstance(values, Mapping):
        raise InputError(f"program={quoted(values)} must be an object with a tool and its args")
    known = Program.__struct_fields__
    problems = [
        f"program.{key} is not a known key{nearest(str(key), known)}"
        for key in values
        if key not in known
    ]
    if not isinstance(values.get("tool"), str):
        problems.append("program.tool is missing; name it, such as 'transformers.Trainer'")
    for key in known:
        value = values.get(key)
        if key in ("tool", "version"):
            if value is not None and not isinstance(value, str):
                problems.append(f"program.{key}={quoted(value)} must be a text")
        elif value is not None and not isinstance(value, Mapping):
            problems.append(f"program.{key}={quoted(value)} must be an object")
    if problems:
        raise InputError(problems)
    return msgspec.convert({k: v for k, v in values.items() if v is not None}, Program)


def with_program(
    data: Mapping[str, Any], releases: Releases
) -> tuple[dict[str, Any], Program, Translation]:
    """A run file's data with the keys that its program means, the program, and its translation.

    A key that the run file itself has is kept.
    """
    rest = {name: values for name, values in data.items() if name != "program"}
    if data.get("inference") is not None:
        raise InputError("program and inference are both there; a run is one: leave one out")
    program = _with_lengths(read_program(data["program"]), data.get("training"))
    meant = translation(program, data, releases)
    if meant.problems:
        raise InputError(meant.problems)
    for name in TRANSLATED:
        keys = getattr(meant, name)
        given = rest.get(name) or {}
        if keys:
            rest[name] = _kept(keys, given) if isinstance(given, Mapping) else given
    return rest, program, meant


def _with_lengths(program: Program, training: Any) -> Program:
    """The program with the lengths that the run file itself has, whose order is the tool's."""
    lengths = training.get("lengths") if isinstance(training, Mapping) else None
    if lengths is None:
        return program
    return replace(program, data={"lengths": lengths, **program.data})


def _kept(keys: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a program means, and those of the run file in their place; `generation` is
    joined key by key, because a part of it means nothing without the rest. Two keys say what is
    recomputed: one of the run file stands for both.
    """
    own = RECOMPUTED if any(given.get(key) is not None for key in RECOMPUTED) else ()
    both = {**{key: value for key, value in keys.items() if key not in own}, **given}
    ours, theirs = keys.get("generation"), given.get("generation")
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        both["generation"] = {**ours, **theirs}
    return both


def translation(
    program: Program, data: Mapping[str, Any], releases: Releases | None = None
) -> Translation:
    """The translation of a program at the user's releases; `data` are the other sections."""
    have = {name: one.release for name, one in (releases or {}).items()}
    hardware, model = data.get("hardware"), data.get("model")
    given = hardware.get("num_gpus") if isinstance(hardware, Mapping) else None
    count = given if isinstance(given, int) else 1
    facts = _model_facts(model)
    try:
        key = msgspec.msgpack.encode((program, count, bool(model), facts, have))
    except (TypeError, OverflowError):  # of values that no file has, which the translation refuses
        key = b""
    if 0 < len(key) <= MOST_KEPT_BYTES:
        return _translated(key)
    return _at_once(program, count, bool(model), facts, have)


@remembered(MOST_KEPT, always=True)
def _translated(key: bytes) -> Translation:
    """The translation of a program for a number of GPUs and a model: made once for each."""
    return _at_once(*msgspec.msgpack.decode(key, type=TranslationKey))


def _at_once(
    program: Program, count: int, has_model: bool, facts: ModelFacts, have: Mapping[str, str]
) -> Translation:
    setup = Setup(num_gpus=count, releases=have, has_model=has_model, model=lambda: facts)
    return translate(program, setup)


def _model_facts(model: Any) -> ModelFacts:
    """Facts of the model; none where it cannot be found, which is reported when it is resolved."""
    if not isinstance(model, Mapping):
        return ModelFacts()
    try:
        found = find_model(msgspec.convert(dict(model), ModelConfig))
    except (InputError, msgspec.ValidationError):
        return ModelFacts()
    config = found.config or {}
    stored = config.get("dtype") or config.get("torch_dtype")
    return ModelFacts(
        family=found.arch.family,
        hidden_size=int(found.arch.hidden),
        tied=bool(found.arch.tied),
        stored_dtype=stored if isinstance(stored, str) else None,
        shape=shape_facts(found.arch),
    )
