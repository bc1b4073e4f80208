"""Lists of the catalogue, for `gpus` and `presets`: search and the three formats."""

from __future__ import annotations

from .. import catalog
from ..runfile.text.errors import InputError
from .output import show, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from typing import Any

NAME_KEYS = ("name", "title", "hub_id", "aliases")  # where a word is looked for


def matching_rows(table: str, word: str | None, command: str) -> list[catalog.Row]:
    """The rows of a table that have `word` in one of their names; all of them without a word."""
    rows = list(catalog.rows(table))
    if word is None:
        return rows
    names = [" ".join(str(row.get(key, "")) for key in NAME_KEYS).lower() for row in rows]
    asked = word.lower().split()
    found = zip(rows, names, strict=True)
    matches = [row for row, name in found if all(part in name for part in asked)]
    matches = matches or list(meant(table, word))
    if not matches:
        raise InputError(f"no name has {word!r} in it; see gpu-mem-calc {command}")
    return matches


def meant(table: str, text: str) -> Iterable[catalog.Row]:
    """The rows that a name means in another spelling."""
    if table == "gpus":
        from ..catalog.cards import meant as meant_cards

        return meant_cards(text)
    from ..catalog.variants import variant

    found = variant(text)
    return [] if found is None else [found[0]]


def show_rows(
    args: argparse.Namespace,
    data: list[dict[str, Any]],
    head: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: set[int],
) -> int:
    """Show rows as --format asks: `data` as JSON, names, or a table of `cells` under `head`.

    `right` are the columns that are aligned to the right.
    """
    if args.format == "json":
        from ..report.encode import to_json

        write(to_json(data), args.output)
    elif args.format == "list":
        write("\n".join(row["name"] for row in data), args.output)
    else:
        from ..report.lines import columns

        show(list(columns(head, cells, right)), args.output)
    return 0
