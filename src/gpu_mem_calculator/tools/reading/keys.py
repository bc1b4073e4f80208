"""Sorts the keys that a user wrote by their effect: honoured, free, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ...runfile.text.errors import nearest
from ..translation.arguments import OFF, REFUSED, ArgumentTable
from .reading import Reading

NOT = "not "  # before a name that has the other value


def sort_keys(
    reading: Reading, table: ArgumentTable, given: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """The given keys that are honoured or free; the others become limits and problems.

    - prefix: what stands in front of a key in sentences, such as `--` or `lora.`
    """
    kept: dict[str, Any] = {}
    for name, value in given.items():
        row, written = table.get(name), f"{prefix}{name}"
        if row is None:
            hint = nearest(str(name), list(table)) or "; leave it out"
            title = f"{reading.tool} {reading.version}".rstrip()
            reading.problems.append(f"{written} is not a key of {title}{hint}")
            continue
        reading.keys[written] = cast(Any, row.effect)
        if row.effect != REFUSED or value == row.default:
            kept[name] = value
        elif not (value in OFF and row.default in OFF):  # else it is off in another word
            reading.limits.append(row.limit(written, value))
    return kept


def with_older_names(table: ArgumentTable, names: Mapping[str, str]) -> ArgumentTable:
    """A table that has names of other releases, too, each with the row of its name here."""
    plain = {old: new.removeprefix(NOT) for old, new in names.items()}
    return {**{old: table[new] for old, new in plain.items() if new in table}, **table}


def by_new_names(
    reading: Reading, names: Mapping[str, str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The given keys by their names in the table; one sentence has those of other releases.

    A name that means `not` another one has the other value.
    """
    older = {old: new for old, new in names.items() if old in given}
    if older:
        listed = ", ".join(f"{old} is {new}" for old, new in older.items())
        reading.assumed.append(f"names of other releases: {listed}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        new = older.get(name, name)
        turned = new.startswith(NOT) and value is not None
        found[new.removeprefix(NOT)] = not value if turned else value
    return found
