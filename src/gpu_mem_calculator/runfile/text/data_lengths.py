"""Lengths of examples from a file: its numbers, or a column of a data set."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...catalog.hub.access import OUTSIDE, access
from ...ledger.units import MIB
from .errors import InputError, quoted
from .files import read_text

WHERE = "training.lengths"
MOST_BYTES = 1024 * MIB
MOST_EXAMPLES = 2_000_000
# Columns that are looked for: numbers, or lists of tokens.
COLUMNS = ("length", "lengths", "num_tokens", "n_tokens", "token_count", "input_ids", "tokens")
ARROW = (".parquet", ".arrow")
TEXT = (".json", ".jsonl", ".csv", ".txt")


def file_lengths(name: str, column: str | None, characters: float | None) -> list[int]:
    """The lengths that a file has, or the files of a folder.

    - column: of a data set; None: the first of `COLUMNS` that is there
    - characters: of a token, for a column of text
    """
    if not access().files:
        raise InputError(f"{WHERE}: this service opens no files; give the lengths themselves")
    if not access().opens(name):
        raise InputError(f"{WHERE}: {name} {OUTSIDE}")
    path = Path(name)
    kinds = (*TEXT, *ARROW)
    if path.is_dir():
        paths = sorted(one for one in path.iterdir() if one.suffix in kinds and _is_data(one))
        if not paths:
            raise InputError(f"{WHERE}: {name} has no file of data ({', '.join(kinds)})")
    else:
        paths = [path]
    found: list[int] = []
    for one in paths:
        if one.suffix not in kinds:
            raise InputError(f"{WHERE}: {one} is none of {', '.join(kinds)}")
        rows = _arrow(one, column) if one.suffix in ARROW else _rows(one)
        found += _lengths(rows, str(one), column, characters)
    if not found:
        raise InputError(f"{WHERE}: {name} has no examples")
    if len(found) > MOST_EXAMPLES:
        raise InputError(f"{WHERE}: {name} has more than {MOST_EXAMPLES:,} examples; give a sample")
    return found


def _is_data(path: Path) -> bool:
    """Whether a file of a saved data set has its rows (`dataset_info.json` has none)."""
    return path.name not in ("dataset_info.json", "state.json", "dataset_dict.json")


def _rows(path: Path) -> Iterator[Any]:
    """The rows of a file: numbers, lists or objects."""
    text = read_text(path, WHERE, most=MOST_BYTES)
    try:
        if path.suffix == ".json":
            data = json.loads(text)
            yield from data if isinstance(data, list) else _columns(data)
        elif path.suffix == ".jsonl":
            yield from (json.loads(line) for line in text.splitlines() if line.strip())
        elif path.suffix == ".txt":
            yield from (int(word) for word in text.split())
        else:
            yield from _csv_rows(text)
    except ValueError as error:
        raise InputError(f"{WHERE} {path}: {error}") from None


def _columns(data: Any) -> Iterator[dict[str, Any]]:
    """The rows of an object with columns."""
    if not isinstance(data, Mapping):
        raise ValueError("it has no list of examples")
    lists = {key: one for key, one in data.items() if isinstance(one, list)}
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))


def _csv_rows(text: str) -> Iterator[Any]:
    """The rows of a CSV: by the names in its first line, or numbers where there are none."""
    lines = list(csv.reader(text.splitlines()))
    head = lines[0] if lines else []
    if len(head) == 1 and head[0].strip().isdigit():
        yield from (int(line[0]) for line in lines if line)
        return
    names = [name.strip() for name in head]
    for line in lines[1:]:
        yield {name: _cell(cell) for name, cell in zip(names, line, strict=False)}


def _cell(text: str) -> Any:
    return int(text) if text.strip().isdigit() else text


def _arrow(path: Path, column: str | None) -> Iterable[Any]:
    """The rows of a column of a parquet file, or of one that `datasets` wrote."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        how = f"{path.suffix[1:]} files are read with pyarrow, which is not installed"
        raise InputError(f"{WHERE} {path}: {how}; pip install pyarrow, or {_instead()}") from None
    try:
        if path.suffix == ".parquet":
            names = parquet.read_schema(path).names
            table = parquet.read_table(path, columns=[_column(names, path, column)])
        else:
            with pyarrow.memory_map(str(path)) as source:
                table = pyarrow.ipc.open_stream(source).read_all()
            table = table.select([_column(table.column_names, path, column)])
        rows: Iterable[Any] = table.to_pylist()
        return rows
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise InputError(f"{WHERE} {path}: {error}") from None


def _instead() -> str:
    return "give the lengths as json, jsonl, csv or txt"


def _column(names: Iterable[str], where: object, wanted: str | None) -> str:
    """The column with the lengths."""
    there = list(names)
    found = [name for name in ((wanted,) if wanted else COLUMNS) if name in there]
    if not found:
        has = ", ".join(map(str, there[:9]))
        what = f"no column {quoted(wanted)}" if wanted else "no column of lengths or of tokens"
        fix = f'name one: {{"file": {quoted(str(where))}, "column": ...}}'
        raise InputError(f"{WHERE} {where}: it has {what}; it has {has}; {fix}")
    return found[0]


def _lengths(
    rows: Iterable[Any], where: str, column: str | None, characters: float | None
) -> Iterator[int]:
    """The length of each row."""
    name: str | None = None
    for number, row in enumerate(rows, 1):
        value = row
        if isinstance(row, Mapping):
            name = name if name in row else _column(row, where, column)
            value = row[name]
        if isinstance(value, str) and characters:
            value = max(1, round(len(value) / characters))
        size = len(value) if isinstance(value, list) else value
        if isinstance(value, str):
            how = f'; add "characters_per_token", or {_instead()} of tokens'
            raise InputError(f"{WHERE} {where}: example {number} is text{how}")
        if type(size) is not int or size < 0:
            raise InputError(f"{WHERE} {where}: example {number} has no length: {quoted(value)}")
        if size:
            yield size
