"""Checks a run file: a dict, or config objects."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from ..ledger.secrets import without_secrets
from ..run.limits import Limit
from ..run.releases import UserRelease
from .config import INNER, MOST_NOTE, MOST_NOTES, Notes, RunFile
from .file_kinds import as_run_file
from .own_names import own_names, with_setting
from .program import Program, Translation
from .sections import SECTIONS as SECTIONS
from .sections import key_types as key_types
from .sections import parts as parts
from .sections import row_names
from .text.errors import InputError, first_problems, nearest, printable, quoted

T = TypeVar("T", bound=Struct)
Releases = Mapping[str, UserRelease]
Translate = Callable[[Mapping[str, Any], Releases], tuple[dict[str, Any], Program, Translation]]
# Beside the sections, each with its type and that in words: what is not modelled of what a run was
# read from, the user's releases, and what was assumed in reading it.
LIMITS, RELEASES, NOTES = "limits", "releases", "notes"
NOTES_FORM = f"a list of at most {MOST_NOTES} sentences of at most {MOST_NOTE} characters"
LIMITS_FORM = "a list of objects with key, why, could (less, more or either), adds and saves"
FORMS: Mapping[str, tuple[Any, str]] = {
    LIMITS: (list[Limit], LIMITS_FORM),
    RELEASES: (dict[str, UserRelease], 'an object such as {"vllm": "0.14.1"}'),
    NOTES: (Notes, NOTES_FORM),
}
MOST_LISTED = 9  # up to this bound a rule lists every value

# Sections that cannot be combined with `inference`, and what to do.
INSTEAD = {
    "training": "a run is one or the other: leave one out",
    "engine": "inference.engine names what serves: leave engine out",
    "parallelism": "use inference.tensor_parallel_size and inference.pipeline_parallel_size",
}
# Keys by which a DeepSpeed configuration is recognised; it must have one of the first two.
DEEPSPEED = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}
NAMES_NO_MODEL = (
    "this is DeepSpeed's configuration, which names no model; give its model:"
    " gpu-mem-calc calculate FILE --model NAME"
)


def parse(
    source: Mapping[str, Any] | RunFile,
    more_problems: Callable[[Any], Iterable[str]] = lambda _: (),
    translate: Translate | None = None,
) -> RunFile:
    """A checked run file from a dict or objects, by its own names; raises all problems at once.

    - more_problems: what is wrong with the data besides its form, asked for if the form is wrong
    - translate: what turns a `program` section into keys of the other sections; `tools/read.py`
      gives it. Without it, `program` is not a section.
    """
    data: Any = as_dict(source) if isinstance(source, RunFile) else source
    try:
        data, beside = _without_beside(as_run_file(without_secrets(data, [])))
    except RecursionError:
        raise InputError("the run file is nested too deeply; write a smaller one") from None
    program = translation = None
    if translate and isinstance(data, Mapping) and data.get("program") is not None:
        data, program, translation = translate(data, beside.get(RELEASES, {}))
    data, problems = own_names(data)
    problems = first_problems(chain(problems, run_file_problems(data)))
    if problems:
        raise InputError([*problems, *more_problems(data)])
    sections: Any = {k: _section(SECTIONS[k], v) for k, v in data.items() if v is not None}
    every = [*beside.get(LIMITS, ()), *(translation.limits if translation else ())]
    beside[LIMITS] = list(dict.fromkeys(every))  # a run file that is read again has those of both
    beside = {name: value or None for name, value in beside.items()}
    return RunFile(**sections, program=program, translation=translation, **beside)


def _without_beside(data: Any) -> tuple[Any, dict[str, Any]]:
    """The sections, and what stands beside them."""
    if not isinstance(data, Mapping):
        return data, {}
    given = {name: data[name] for name in FORMS if data.get(name) is not None}
    names = given.get(RELEASES)
    if isinstance(names, Mapping):
        given[RELEASES] = {k: {"release": v} if isinstance(v, str) else v for k, v in names.items()}
    found = {}
    for name, value in given.items():
        kind, form = FORMS[name]
        try:
            found[name] = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise InputError(f"{name} must be {form}: {error}") from None
    return {name: values for name, values in data.items() if name not in FORMS}, found


def gather_sections(*sections: Struct) -> RunFile:
    """A run file from config objects, each in the section it belongs to."""
    names = {kind: name for name, kind in SECTIONS.items()}
    strangers = [type(one).__name__ for one in sections if type(one) not in names]
    if strangers:
        raise InputError([f"{name} is not a section of a run file" for name in strangers])
    sections_by_name: Any = {names[type(one)]: one for one in sections}
    return RunFile(**sections_by_name)


def given_keys(section: Struct) -> dict[str, Any]:
    """The keys of a section that have a value."""
    values = {key: getattr(section, key) for key in section.__struct_fields__}
    return {key: value for key, value in values.items() if value is not None}


def as_dict(value: Any) -> Any:
    """Objects as plain data, without fields that are None."""
    if value is None or type(value) in (int, str, bool, float):
        return value
    if isinstance(value, Struct):
        return {k: as_dict(v) for k, v in given_keys(value).items() if k != "translation"}
    if isinstance(value, Mapping):
        return {k: as_dict(v) for k, v in value.items()}
    return [as_dict(one) for one in value] if isinstance(value, tuple | list) else value


def _section(kind: type[Struct], values: Mapping[str, Any]) -> Struct:
    types = key_types(kind)
    given = {k: v for k, v in values.items() if v is not None}
    for key, inner in INNER.items():
        if isinstance(given.get(key), Mapping):
            given[key] = _section(inner, given[key])
    converted = _convert_all(kind, given)
    return converted or kind(**{k: _convert(v, types[k]) for k, v in given.items()})


def _convert_all(kind: type[T], given: dict[str, Any]) -> T | None:
    """Convert all keys of a section in one call, which takes a fortieth of the time.

    None where keys must be converted one by one: some are unknown or wrong, or are floats or lists.
    """
    if not given.keys() <= key_types(kind).keys():
        return None
    if any(isinstance(value, (float, list)) for value in given.values()):
        return None
    types = key_types(kind)
    if any(isinstance(value, str) and _no_row(value, types[key]) for key, value in given.items()):
        return None
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, OverflowError):
        return None


def _no_row(value: Any, kind: Any) -> bool:
    """Whether a type allows only names of rows, and the value is none of them."""
    names = row_names(kind)
    return bool(names) and value not in names


def section(name: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """One checked section; `name` is used in error messages. Raises all problems at once."""
    problems = list(_check_section(name, kind, values))
    if problems:
        raise InputError(problems)
    converted: Any = _section(kind, values)
    return cast("T", converted)


def _convert(value: Any, kind: Any) -> Any:
    """A value converted to its type; 8.0 is accepted as a whole number, also in a list."""
    if _no_row(value, kind):
        raise msgspec.ValidationError(f"{value!r} is not the name of a row")
    if isinstance(value, list):
        value = [int(v) if type(v) is float and v.is_integer() else v for v in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        try:
            return msgspec.convert(int(value), kind)
        except msgspec.ValidationError:
            return msgspec.convert(value, kind)
    return msgspec.convert(value, kind)


def run_file_problems(data: Any) -> Iterator[str]:
    """All problems of a run file's form: unknown keys, wrong types, values out of range."""
    if not isinstance(data, Mapping):
        yield f"a run file is an object with a 'model' section, not {quoted(data)}"
        return
    if data.keys() & DEEPSPEED and not data.keys() & SECTIONS.keys():
        yield NAMES_NO_MODEL
        return
    for name, values in data.items():
        if name not in SECTIONS:
            yield f"{quoted(name)} is not a section of a run file{nearest(name, SECTIONS)}"
        elif values is not None:
            yield from _check_section(str(name), SECTIONS[name], values)
    if data.get("inference") is not None:
        yield from (
            f"{name} and inference are both there; {why}"
            for name, why in INSTEAD.items()
            if data.get(name)
        )
    if not isinstance(data.get("model"), Mapping):
        yield "the run file has no 'model' section; add one with a name, a config or numbers"


def _other_section(key: Any) -> str:
    """Where a key belongs that is in the wrong section: empty where none or several have it."""
    found = [name for name, kind in SECTIONS.items() if key in key_types(kind)]
    return f"; it is {found[0]}.{key}" if len(found) == 1 else ""


def _check_section(where: str, kind: type[Struct], values: Any) -> Iterator[str]:
    if not isinstance(values, Mapping):
        yield f"{where}={quoted(values)} must be an object"
        return
    given = {k: v for k, v in values.items() if v is not None}
    if not given.keys() & INNER.keys() and _convert_all(kind, given) is not None:
        return
    types = key_types(kind)
    for key, value in values.items():
        if key not in types:
            hint = _other_section(key) or nearest(key, types)
            yield f"{where}.{printable(str(key))} is not a known key{hint}"
        elif key in INNER and isinstance(value, Mapping):
            yield from _check_section(f"{where}.{key}", INNER[key], value)
        elif value is not None:
            try:
                _convert(value, types[key])
            except (msgspec.ValidationError, OverflowError):
                hint = nearest(value, allowed_words(types[key])) if isinstance(value, str) else ""
                must_be = _upper_bound(value, types[key]) or rule(types[key])
                yield f"{where}.{key}={quoted(value)} must be {must_be}{hint}"


def _upper_bound(value: Any, kind: Any) -> str:
    """The bound that a number exceeds, in words; empty where it exceeds none, or where the rule
    lists every value.
    """
    metas = [m for part in parts(kind) for m in getattr(part, "__metadata__", ())]
    bounds = [m.le for m in metas if isinstance(m, msgspec.Meta) and m.le is not None]
    over = type(value) in (int, float) and bounds and value > max(bounds)
    return f"at most {max(bounds):,}" if over and max(bounds) > MOST_LISTED else ""


def rule(kind: Any) -> str:
    """What a type allows, in words, for error messages."""
    allowed: list[str] = []
    for part in parts(kind):
        if names := row_names(part):
            allowed.append(_or(names))
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.description:
                allowed.append(meta.description)
            elif isinstance(meta, msgspec.Meta) and meta.ge is not None and meta.le is not None:
                allowed.append(f"a whole number from {meta.ge} to {meta.le}")
        if typing.get_origin(part) is typing.Literal:
            allowed.append(_or(typing.get_args(part)))
        elif part in (list[str],):
            allowed.append("a list of strings")
        elif isinstance(part, type) and issubclass(part, Struct):
            allowed.append("an object")
    return " or ".join(dict.fromkeys(allowed))


def allowed_words(kind: Any) -> list[str]:
    """The words that a type allows; empty where it allows any text."""
    choices = [part for part in parts(kind) if typing.get_origin(part) is typing.Literal]
    listed = [word for one in choices for word in typing.get_args(one) if isinstance(word, str)]
    return [*listed, *row_names(kind)]


def _or(allowed_words: tuple[Any, ...]) -> str:
    shown = [repr(w) for w in allowed_words]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def with_settings(data: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A run file's data with `section.key=value` settings; other people's names become ours."""
    data, problems = own_names(data)
    if problems:
        raise InputError(problems)
    for setting in settings:
        path, sign, text = setting.partition("=")
        keys = path.strip().split(".")
        if not sign or not all(keys):
            raise InputError(f"--set {setting!r} must be section.key=value")
        try:
            value = json.loads(text)
        except ValueError:
            value = _names(text) if keys[-1] == "target_modules" else text
        with_setting(data, ".".join(keys), value)
    return without_secrets(data, [])


def _names(text: str) -> str | list[str]:
    """`q_proj,v_proj` and `[q_proj,v_proj]` as a list; any other text, such as a pattern, stays."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    names = [name.strip() for name in inner.split(",")]
    several = len(names) > 1 or inner != text.strip()
    return names if several and all(re.fullmatch(r"[\w.]+", name) for name in names) else text
