"""Reads measured runs, one JSON object on each line, and checks them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...runfile.text.errors import MOST_PROBLEMS, InputError, first_problems, nearest, quoted
from ...runfile.text.files import MOST_RUNS_BYTES, read_text
from ...tools.translation.arguments import tables
from ..jobs.megatron_defaults import with_measured_defaults
from ..jobs.phases import in_step
from .life import TRAINED, host_phases

ROWS = tables(__file__)
METRICS: dict[str, str] = ROWS["metrics"]  # each that is scored, and its key in `measured`
KNOWN = (*METRICS.values(), *ROWS["unscored"])
STEPS = "steps"  # of a run whose batches differ: what each step has, scored as a phase
LISTS = ("step_peaks_bytes",)  # a number of bytes for each step
TIMED = "step_seconds_all"  # the seconds of each step that was timed without probes
OF_LIVES = ("high_water_mark", "expandable")  # how a life was measured
NUMBERS = ("step_seconds", "utilization_pct")  # floats; the others are whole numbers
NEEDED: dict[str, str] = ROWS["needed"]  # keys of a row that must be there, and an example of each
KEYS = (*NEEDED, *ROWS["others"])
GROUPS = ("none", "fake", "nccl, 1 rank", "nccl")


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """One measured run. `phases` has the peak of each phase, in bytes.

    `failed` is the error of a run that did not complete; `life` how the program of a whole life was
    measured.
    """

    id: str
    group: str
    config: dict[str, Any]
    measured: dict[str, Any]
    function: str | None = None  # the function that makes model and batch, instead of a run file
    record: str | None = None  # path of the record of that model
    rank: int = 0
    phases: dict[str, int] = {}
    process_group: str | None = None
    failed: str = ""
    life: dict[str, Any] = {}


def read_rows(path: str | Path) -> list[MeasuredRun]:
    """The runs of a file; raises all problems at once."""
    text = read_text(path, most=MOST_RUNS_BYTES)
    return parse_rows(text, str(path), Path(path).parent)


def parse_rows(text: str, where: str = "runs", folder: Path = Path()) -> list[MeasuredRun]:
    """The runs of a text. Empty lines are skipped, and so is a failed run that was repeated.

    where: names the text in error messages; folder: paths of records are relative to it.
    """
    problems: list[str] = []
    rows: dict[str, MeasuredRun] = {}
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        data, sentences = _parse_line(line)
        if data is not None and not sentences and _is_taken(rows.get(data["id"])):
            line_before = line_of[data["id"]]
            sentences = [f"id {data['id']!r} is that of line {line_before}; give it another"]
        problems += [f"{where} line {number}: {sentence}" for sentence in sentences]
        if len(problems) > MOST_PROBLEMS:
            break
        if data is not None and not sentences:
            line_of[data["id"]] = number
            rows.pop(data["id"], None)
            rows[data["id"]] = _row(data, folder)
    if problems and not any(line.lstrip().startswith("{") for line in text.split("\n")):
        fix = "a file of runs has one JSON object a line"
        problems = [f"{where}: no line begins an object; {fix}"]
    if problems and _is_plain_json(text):
        fix = "write each run as an object on a line of its own"
        problems = [f"{where}: this is one JSON value over several lines or a list; {fix}"]
    if not problems and not rows:
        problems = [f"{where}: there is no run in it; write each run as a JSON object on a line"]
    if problems:
        raise InputError(first_problems(problems))
    return list(rows.values())


def _is_taken(before: MeasuredRun | None) -> bool:
    """Whether an id is taken; a failed run may be repeated under its id."""
    return before is not None and not before.failed


def _parse_line(line: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The object of a line (None where it is not valid), and its problems."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "too deep"
        return None, [f"not valid JSON, {reason}; write one object a line"]
    if not isinstance(data, dict):
        fix = "write an object with id, group, config and measured"
        return None, [f"{_short(data)} is not a run; {fix}"]
    return data, list(row_problems(data))


def _is_plain_json(text: str) -> bool:
    """Whether the text is one JSON value instead of JSON Lines."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, list) or len(text.strip().split("\n")) > 1


def rows_from(objects: Iterable[Mapping[str, Any]]) -> list[MeasuredRun]:
    """Runs from plain data, checked as those of a file are."""
    return parse_rows("\n".join(json.dumps(one) for one in objects))


def _row(data: Mapping[str, Any], folder: Path) -> MeasuredRun:
    measured = {k: v for k, v in data["measured"].items() if v is not None}
    if measured.get(STEPS):  # each begins its peaks anew, so the phase has what followed the last
        phases = {k: v for k, v in (data.get("phases") or {}).items() if k != TRAINED}
        data = {**data, "phases": phases}
    phases = {k: v["peak_bytes"] for k, v in (data.get("phases") or {}).items()}
    on_host = host_phases(data)
    if on_host:
        measured.setdefault("host_bytes", max(on_host.values()))
        phases |= on_host
    for number, step in enumerate(measured.get(STEPS) or ()):
        phases.setdefault(f"s{number}.step", step["peak_bytes"])
    if has_probes(measured, phases):
        measured.pop(METRICS["step"], None)
    environment = data.get("environment") or {}
    return MeasuredRun(
        id=data["id"],
        group=data["group"],
        config=_config(data, environment),
        measured=measured,
        function=data.get("function"),
        record=str(folder / data["record"]) if data.get("record") else None,
        rank=data.get("rank") or 0,
        phases=phases,
        process_group=environment.get("process_group"),
        failed=str(data.get("failed") or ""),
        life=data.get("life") or {},
    )


def _config(data: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The run file, with the defaults and the allocator settings of the measurement."""
    config = with_measured_defaults(data["config"], environment)
    settings, training = environment.get("alloc_conf"), config.get("training") or {}
    if not settings or "inference" in config or not isinstance(training, dict):
        return config
    return {**config, "training": {**training, "pytorch_alloc_conf": settings}}


def has_probes(measured: Mapping[str, Any], phases: Iterable[str]) -> bool:
    """Whether the step was timed with probes between its phases.

    `measure` writes the seconds of each step without probes, too. A row without them that has
    phases of steps, or a peak for each step, was timed while they were read.
    """
    if TIMED in measured:
        return False
    return "step_peaks_bytes" in measured or any(in_step(name) for name in phases)


def row_problems(data: Mapping[str, Any]) -> Iterator[str]:
    """Problems in the form of a measured run; the rung checks its config."""
    for key, example in NEEDED.items():
        if data.get(key) is None:
            yield f"{key!r} is missing; add {example}"
    for key in data:
        hint = "" if key in KEYS else nearest(key, KEYS)
        if hint:
            yield f"{key!r} is not a known key{hint}"
    for key in ("id", "group", "function", "record"):
        value = data.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            yield f"{key}={_short(value)} must be a string"
    for key in ("config", "measured", "phases", "environment"):
        value = data.get(key)
        if value is not None and not isinstance(value, dict):
            yield f"{key}={_short(value)} must be an object"
    if not _whole_number(data.get("rank", 0) or 0):
        yield f"rank={_short(data['rank'])} must be a whole number, 0 or more"
    yield from _measured_problems(_object(data, "measured"))
    yield from _phase_problems(_object(data, "phases"))
    group = _object(data, "environment").get("process_group")
    if group is not None and group not in GROUPS:
        known = ", ".join(map(repr, GROUPS)) + nearest(str(group), GROUPS)
        yield f"environment.process_group={_short(group)} must be one of {known}"


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _measured_problems(measured: Mapping[str, Any]) -> Iterator[str]:
    for key, value in measured.items():
        if key not in KNOWN or key in OF_LIVES or value is None:
            continue
        if key == "fits":
            good, form = isinstance(value, bool), "true or false"
        elif key in LISTS:
            good, form = _list_of(value, _whole_number), "a list of whole numbers of bytes"
        elif key == STEPS:
            good, form = _list_of(value, _is_step), "a list of objects with peak_bytes"
        elif key == TIMED:
            good, form = _list_of(value, _number), "a list of numbers, 0 or more"
        elif key in NUMBERS:
            good, form = _number(value), "a number, 0 or more"
        else:
            unit = "a whole number" if key == "kv_tokens" else "a whole number of bytes"
            good, form = _whole_number(value), f"{unit}, 0 or more"
        if not good:
            yield f"measured.{key}={_short(value)} must be {form}"


def unknown_notes(rows: Iterable[MeasuredRun]) -> Iterator[str]:
    """A sentence for each key of `measured` that is not known; its values are kept in the rows."""
    counts = Counter(key for row in rows for key in row.measured if key not in KNOWN)
    for key, count in counts.items():
        of = f"{count} row{'s' * (count > 1)}"
        yield f"measured.{key} ({of}) is not a known key and is not scored{nearest(key, KNOWN)}"


def _phase_problems(phases: Mapping[str, Any]) -> Iterator[str]:
    for name, phase in phases.items():
        if not isinstance(phase, dict) or not _whole_number(phase.get("peak_bytes")):
            yield f"phases.{name} must be an object with peak_bytes, a whole number of bytes"


def _whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _list_of(value: Any, good: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(good, value))


def _is_step(value: Any) -> bool:
    return isinstance(value, dict) and _whole_number(value.get("peak_bytes"))


def _short(value: Any) -> str:
    return quoted(value, 40)
