"""Tables of the package: TOML and JSON files beside the code that reads them.

To parse TOML takes longer than many commands, so that what was parsed is kept in `__pycache__`, as
Python keeps what it compiles, and is taken while the file has the bytes that it was made of. Only
the parser's result is kept, which depends on no code of this package.
"""

from __future__ import annotations

import marshal
import os
import sys
from _imp import source_hash  # what Python checks its own compiled files with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(__file__))
FORM = 1  # of a kept table: one of another form is not taken
MARSHAL = 4  # marshal's format: every Python from 3.4 on reads it
HASH_BYTES = 8


def read_table(path: str) -> Any:
    """The data of a table, by its file."""
    with open(path, "rb") as file:
        text = file.read()
    place = _place(path)
    data = _kept(place, text)
    if data is None:
        data = _interned(_parsed(path, text))
        if not (sys.dont_write_bytecode or sys.pycache_prefix):
            _keep(place, text, data)
    return data


def read_made(path: str, name: str, make: Callable[[Any, str], Any]) -> Any:
    """What is made of a table's data under a name, kept like the table.

    `make` is a function of both alone; when its code changes, it is made again.
    """
    with open(path, "rb") as file:
        text = file.read()
    text += name.encode() + make.__code__.co_code
    place = _place(f"{path}.{name}")
    made = _kept(place, text)
    if made is None:
        made = _interned(make(read_table(path), name))
        if not (sys.dont_write_bytecode or sys.pycache_prefix):
            _keep(place, text, made)
    return made


def keep_tables(folder: str = PACKAGE) -> list[str]:
    """Keep every table of a package, for a place where nothing can be written later.

    Returns the files in which they are kept.
    """
    return [_keep_table(path) for path in sorted(_tables(folder))]


def _keep_table(path: str) -> str:
    with open(path, "rb") as file:
        text = file.read()
    place = _place(path)
    _write(place, text, _interned(_parsed(path, text)))
    return place


def _tables(folder: str) -> Iterator[str]:
    """The files of tables: all TOML, and the JSON that lies beside modules."""
    for place, _, names in os.walk(folder):
        endings = (".toml", ".json") if "__init__.py" in names else (".toml",)
        yield from (os.path.join(place, name) for name in names if name.endswith(endings))


def _place(path: str) -> str:
    """The file in which a table is kept."""
    folder, name = os.path.split(path)
    return os.path.join(folder, "__pycache__", f"{name}.marshal")


def _kept(place: str, text: bytes) -> Any:
    """What is kept of a text; None where nothing is, or what was made of another text, or what is
    not whole.
    """
    try:
        with open(place, "rb") as file:
            content = file.read()
    except OSError:
        return None
    data = content[2 * HASH_BYTES :]
    return marshal.loads(data) if content == _content(text, data) else None


def _content(text: bytes, data: bytes) -> bytes:
    """The bytes of a file that keeps data which was made of a text."""
    return source_hash(FORM, text) + source_hash(FORM, data) + data


def _parsed(path: str, text: bytes) -> Any:
    if path.endswith(".json"):
        import json

        return json.loads(text)
    import tomllib

    return tomllib.loads(text.decode("utf-8"))


def _interned(data: Any) -> Any:
    """The data with equal texts as one object each, which are stored once and are found faster."""
    if type(data) is dict:
        return {sys.intern(key): _interned(value) for key, value in data.items()}
    if type(data) is list:
        return [_interned(value) for value in data]
    return sys.intern(data) if type(data) is str else data


def _keep(place: str, text: bytes, data: Any) -> None:
    """Keep the data of a text. Where that cannot be written, the text is parsed again next time."""
    from contextlib import suppress

    with suppress(OSError):
        _write(place, text, data)


def _write(place: str, text: bytes, data: Any) -> None:
    """Write a file as a whole or not at all, as others may read it at the same time."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    unfinished = f"{place}.{os.getpid()}"
    try:
        with open(unfinished, "wb") as file:
            file.write(_content(text, marshal.dumps(data, MARSHAL)))
        os.replace(unfinished, place)
    except OSError:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise
