"""Lock files: the arguments of a table at every release, a span for each change.

A lock has `package`, `reads` (the files and names that were read), `releases` (version and date, in
order), `bases` (since a release, the tables whose arguments it inherits), `requires` (since a
release, the releases of other packages that it allows) and `arguments`: for each name its spans in
order. A span has the release `from` which it holds and what differs from the span before it
that are added and removed); `gone` where the release has no such argument.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .index import version_key
from .options import Arguments

TOOLS = Path(__file__).parents[2] / "src" / "gpu_mem_calculator" / "tools"
STATES = ("default", "computed", "required")  # an argument has one of them
KEYS = (*STATES, "type", "choices", "form", "flags", "programs")
Lock = dict[str, Any]


def path_of(table: str) -> Path:
    """The lock of a table, beside it."""
    return TOOLS / f"{table}.lock.json"


def names_in(table: str) -> set[str]:
    """The names that the groups of a table have."""
    data = tomllib.loads((TOOLS / f"{table}.toml").read_text("utf-8"))
    rows = [data.get("memory", {}), *data.get("free", ()), *data.get("refused", ())]
    return {name for row in rows for name in row.get("names", ())}


def load(table: str) -> Lock:
    """The lock of a table; an empty one where there is none."""
    path = path_of(table)
    found: Lock = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def states(lock: Lock) -> dict[str, Arguments]:
    """The arguments at each release."""
    found: dict[str, Arguments] = {release: {} for release in lock.get("releases", {})}
    order = list(found)
    for name, spans in lock.get("arguments", {}).items():
        state: dict[str, Any] | None = None
        changes = {span["from"]: span for span in spans}
        for release in order:
            if span := changes.get(release):
                state = after(state or {}, span)
            if state is not None:
                found[release][name] = state
    return found


def after(state: Mapping[str, Any], span: Mapping[str, Any]) -> dict[str, Any] | None:
    """An argument after a span; None where it is gone."""
    if span.get("gone"):
        return None
    new = {key: value for key, value in span.items() if key != "from"}
    if isinstance(change := new.get("choices"), dict):
        left = [one for one in state["choices"] if one not in change.get("removed", ())]
        new["choices"] = [*left, *change.get("added", ())]
    kept = {k: v for k, v in state.items() if k not in STATES or not set(new) & set(STATES)}
    return {key: value for key, value in (kept | new).items() if value != [] or key == "default"}


def bases_at(lock: Lock) -> dict[str, list[str]]:
    """The tables whose arguments are inherited, at each release."""
    return _held(lock, lock.get("bases", ()), "tables", [])


def requires_at(lock: Lock) -> dict[str, dict[str, str]]:
    """The releases of other packages that each release allows, by package."""
    found: dict[str, dict[str, str]] = {release: {} for release in lock.get("releases", {})}
    for name, spans in lock.get("requires", {}).items():
        for release, allowed in _held(lock, spans, "range", "").items():
            found[release] |= {name: allowed} if allowed else {}
    return found


def _held(lock: Lock, spans: Any, key: str, current: Any) -> dict[str, Any]:
    """What spans say at each release."""
    changes = {one["from"]: one[key] for one in spans}
    found = {}
    for release in lock.get("releases", {}):
        current = changes.get(release, current)
        found[release] = current
    return found


def _spanned(order: Sequence[str], held: Mapping[str, Any], key: str, nothing: Any) -> list[Lock]:
    """The spans of what is held at each release."""
    spans, met = [], nothing
    for release in order:
        if (now := held.get(release, nothing)) != met:
            spans.append({"from": release, key: now})
            met = now
    return spans


def changes(arguments: Mapping[str, Arguments]) -> dict[str, Arguments]:
    """The releases that differ from the one before them, and the newest."""
    order = sorted(arguments, key=version_key)
    pairs = zip(order, ["", *order], strict=False)
    kept = [now for now, before in pairs if arguments[now] != arguments.get(before)]
    return {release: arguments[release] for release in dict.fromkeys([*kept, *order[-1:]])}


def made(
    package: str,
    reads: Sequence[str],
    dates: Mapping[str, str],
    arguments: Mapping[str, Arguments],
    bases: Mapping[str, list[str]],
    requires: Mapping[str, Mapping[str, str]] | None = None,
) -> Lock:
    """The lock of what was read at each release."""
    order = sorted(arguments, key=version_key)
    names = sorted({name for found in arguments.values() for name in found})
    lock: Lock = {"package": package, "reads": list(reads)}
    lock["releases"] = {release: dates[release] for release in order}
    if spans := _spanned(order, bases, "tables", []):
        lock["bases"] = spans
    ranges = requires or {}
    for other in sorted({name for found in ranges.values() for name in found}):
        held = {release: found.get(other, "") for release, found in ranges.items()}
        lock.setdefault("requires", {})[other] = _spanned(order, held, "range", "")
    lock["arguments"] = {name: _spans(name, order, arguments) for name in names}
    return lock


def _spans(
    name: str, order: Sequence[str], arguments: Mapping[str, Arguments]
) -> list[dict[str, Any]]:
    """The spans of one argument."""
    spans: list[dict[str, Any]] = []
    state: dict[str, Any] | None = None
    for release in order:
        row = arguments[release].get(name)
        if row is None:
            if state is not None:
                spans.append({"from": release, "gone": True})
            state = None
            continue
        now = {key: row[key] for key in KEYS if key in row and (row[key] or key in STATES)}
        if state and now.get("choices"):  # in the order in which they came
            before, choices = state.get("choices", ()), now["choices"]
            kept = [one for one in before if one in choices]
            now["choices"] = [*kept, *(one for one in choices if one not in before)]
        if now != state:
            spans.append({"from": release, **_change(state or {}, now)})
        state = now
    return spans


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between two states of an argument; an empty value is what is there no more."""
    change = {key: value for key, value in new.items() if old.get(key, ...) != value}
    lists = ("choices", "flags", "programs")
    gone = [key for key in old if key not in new and key not in STATES]
    change |= {key: [] if key in lists else "" for key in gone}
    before, after = old.get("choices"), new.get("choices")
    if before and after and "choices" in change:
        added = [one for one in after if one not in before]
        removed = [one for one in before if one not in after]
        parts = {"added": added, "removed": removed}
        change["choices"] = {key: value for key, value in parts.items() if value}
    return change


def text(lock: Lock) -> str:
    """A lock as text: a line for each argument."""
    lines = []
    for key, value in lock.items():
        if key == "arguments":
            rows = [f"  {json.dumps(name)}: {_dumped(spans)}" for name, spans in value.items()]
            lines.append(f' "{key}": {{\n' + ",\n".join(rows) + "\n }")
        elif key == "releases":
            lines.append(f' "{key}": {{\n{_wrapped(value)}\n }}')
        else:
            lines.append(f" {json.dumps(key)}: {_dumped(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _wrapped(releases: Mapping[str, str]) -> str:
    """Releases and dates, a line for each minor version, or for each hundred builds."""
    lines: dict[str, list[str]] = {}
    for version, date in releases.items():
        minor = ".".join(version.split(".")[:2]) if "." in version else version[:-2]
        lines.setdefault(minor, []).append(f"{json.dumps(version)}: {json.dumps(date)}")
    return ",\n".join(f"  {', '.join(row)}" for row in lines.values())


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
