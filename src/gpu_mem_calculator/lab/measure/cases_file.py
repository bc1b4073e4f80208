"""Cases to measure: a run file, a rank and the conditions; read from a file of cases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...runfile.text.errors import InputError, quoted
from ...runfile.text.files import MOST_RUNS_BYTES, read_text
from .probe import TIMED_STEPS

STEPS = 3  # the optimizer's state exists from the second on; the third is steady
TIMEOUT = 900.0  # seconds; the first run of a fused optimizer compiles it


class MeasureCase(Struct, frozen=True, kw_only=True):
    """One measurement.

    - `config`: the run file
    - `function`, `values`: makes the model and batch instead of the run file, and its arguments
      (`with` in a file)
    - `group`: the group of measured runs, where it is not the program's
    - `cap_bytes`: the bytes that torch may take, at most
    - `alloc_conf`: PYTORCH_ALLOC_CONF
    - `bounds_bytes`: caps to look for the least memory between, instead of those of a run without
    - `snapshot`: the file for torch's memory snapshot
    - `averages`: whether the averages of the last step are measured
    - `timed`: steps after them that are timed without probes; none under a cap or for a snapshot
    - `timeout`: seconds
    """

    id: str
    config: Mapping[str, Any]
    function: str | None = None
    values: Mapping[str, Any] = {}
    group: str = ""
    rank: int = 0
    steps: int = STEPS
    cap_bytes: int | None = None
    bounds_bytes: tuple[int, int] | None = None
    alloc_conf: str | None = None
    snapshot: str | None = None
    averages: bool = True
    timed: int = TIMED_STEPS
    timeout: float = TIMEOUT


def read_cases(path: str | Path) -> list[MeasureCase]:
    """The cases of a file, one JSON object on each line; measured runs are cases, too."""
    text = read_text(path, "--cases", most=MOST_RUNS_BYTES)
    problems: list[str] = []
    cases: dict[str, MeasureCase] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            case = _case(line)
            if case.id in cases:
                raise InputError(f"id {case.id!r} is there twice; give each case its own")
            cases[case.id] = case
        except InputError as error:
            problems += [f"{path} line {number}: {problem}" for problem in error.problems]
    if not cases and not problems:
        problems = [f"--cases {path}: there is no case in it"]
    if problems:
        raise InputError(problems)
    return list(cases.values())


def _case(line: str) -> MeasureCase:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InputError(f"not valid JSON, {error}") from None
    if not isinstance(data, dict):
        raise InputError('a case is an object such as {"id": "...", "config": {...}}')
    problems = list(_problems(data))
    if problems:
        raise InputError(problems)
    environment = data.get("environment") or {}
    return MeasureCase(
        id=data["id"],
        config=data["config"],
        function=data.get("function"),
        values=data.get("with") or {},
        group=data.get("group") or "",
        rank=data.get("rank") or 0,
        steps=data.get("steps") or environment.get("steps") or STEPS,
        cap_bytes=data.get("cap_bytes") or environment.get("cap_bytes"),
        bounds_bytes=_bounds(data),
        alloc_conf=data.get("alloc_conf") or environment.get("alloc_conf"),
        timeout=data.get("timeout") or TIMEOUT,
    )


def _bounds(data: Mapping[str, Any]) -> tuple[int, int] | None:
    low, high = data.get("bounds_bytes") or (0, 0)
    return (low, high) if high else None


def bounds_problem(bounds: Any) -> str:
    """Why these are no two caps in ascending order; empty where they are."""
    caps = bounds if isinstance(bounds, list | tuple) and len(bounds) == 2 else (0, 0)
    whole = all(isinstance(cap, int) and not isinstance(cap, bool) for cap in caps)
    if whole and 0 < caps[0] < caps[1]:
        return ""
    return f"bounds_bytes={quoted(bounds)} must be two whole numbers of bytes, the lower one first"


def _problems(data: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(data.get("id"), str) or not data["id"]:
        yield "id is missing; a case needs a name of its own"
    if not isinstance(data.get("config"), dict):
        yield "config is missing; a case needs a run file"
    for key, low in {"rank": 0, "steps": 1, "cap_bytes": 1, "timeout": 1}.items():
        value = data.get(key)
        if value is not None and (type(value) is not int or value < low):
            yield f"{key}={quoted(value)} must be a whole number, {low} or more"
    for key in ("group", "alloc_conf", "function"):
        if not isinstance(data.get(key), str | None):
            yield f"{key}={quoted(data[key])} must be a string"
    if data.get("bounds_bytes") is not None and (why := bounds_problem(data["bounds_bytes"])):
        yield why
    yield from _values_problems(data)


def _values_problems(data: Mapping[str, Any]) -> Iterator[str]:
    values = data.get("with")
    if values is None:
        return
    if not isinstance(values, dict):
        yield f'with={values!r} must be an object such as {{"n_layer": 24}}'
        return
    if not data.get("function"):
        yield "with is for the arguments of a function; add function, or leave it out"
    for name, value in values.items():
        if not isinstance(value, str | int | float | bool | None):
            yield f"with.{name}={quoted(value)} must be a number, a string, true, false or null"


def fresh_id(name: str, taken: Iterable[str]) -> str:
    """The first of `run`, `run-2`, `run-3`, ... that is not taken."""
    used = set(taken)
    names = (f"{name}-{number}" if number > 1 else name for number in count(1))
    return next(one for one in names if one not in used)
