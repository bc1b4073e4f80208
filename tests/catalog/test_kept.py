"""What is parsed of a table is kept, and taken only while it is what the file says."""

from __future__ import annotations

import json
import marshal
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.catalog import kept
from gpu_mem_calculator.catalog.kept import PACKAGE, keep_tables, read_table

TEXT = 'name = "a card"\nsizes = [1_000, 2.5, "a card"]\n[rates]\nbf16 = true\n'
DATA = {"name": "a card", "sizes": [1000, 2.5, "a card"], "rates": {"bf16": True}}
TABLES = sorted(kept._tables(PACKAGE))


@pytest.fixture(autouse=True)
def writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python writes what it compiles, whatever the environment of the tests says."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were parsed."""
    files: list[str] = []
    parse = kept._parsed

    def count(path: str, text: bytes) -> Any:
        files.append(os.path.basename(path))
        return parse(path, text)

    monkeypatch.setattr(kept, "_parsed", count)
    return files


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table that nobody has read."""
    path = tmp_path / "table.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def place(table: Path) -> Path:
    """Where a table is kept."""
    return table.parent / "__pycache__" / f"{table.name}.marshal"


def test_a_table_is_parsed_once(table: Path, parsed: list[str]) -> None:
    """The second reading takes what the first one kept; each gives data of its own."""
    first, second = read_table(str(table)), read_table(str(table))
    assert first == second == DATA
    assert first is not second
    assert parsed == ["table.toml"]
    assert os.listdir(place(table).parent) == ["table.toml.marshal"]


def sizes(data: Any, name: str) -> list[Any]:
    """What a test makes of a table."""
    return [name, *data["sizes"]]


def others(data: Any, name: str) -> list[Any]:
    """Another thing that is made of it."""
    return [*data["sizes"], name, name]


def test_what_is_made_of_a_table_is_kept(table: Path, parsed: list[str]) -> None:
    """Until the table, the name or the function is another one."""
    path = str(table)
    assert kept.read_made(path, "a", sizes) == ["a", 1000, 2.5, "a card"]
    assert kept.read_made(path, "a", sizes) == ["a", 1000, 2.5, "a card"]
    assert parsed == ["table.toml"]
    assert kept.read_made(path, "b", sizes)[0] == "b"
    assert kept.read_made(path, "a", others)[-1] == "a"
    table.write_text(TEXT.replace("2.5", "3.5"), encoding="utf-8")
    assert kept.read_made(path, "a", sizes) == ["a", 1000, 3.5, "a card"]


def test_json_is_kept_too(tmp_path: Path, parsed: list[str]) -> None:
    """The ending of the file says how it is parsed."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps([DATA, None]), encoding="utf-8")
    assert read_table(str(path)) == read_table(str(path)) == [DATA, None]
    assert parsed == ["table.json"]


def test_a_changed_file_is_parsed_again(table: Path, parsed: list[str]) -> None:
    """Also where its size and its time are the same."""
    read_table(str(table))
    before = table.stat()
    table.write_text(TEXT.replace("true", "3.25"), encoding="utf-8")
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert table.stat().st_size == before.st_size
    assert read_table(str(table)) == {**DATA, "rates": {"bf16": 3.25}}
    assert read_table(str(table)) == {**DATA, "rates": {"bf16": 3.25}}
    assert parsed == ["table.toml"] * 2


@pytest.mark.parametrize("size", [0, 7, 16, 20, -1])
def test_what_is_cut_short_is_not_taken(table: Path, parsed: list[str], size: int) -> None:
    """The table is parsed, and kept whole again."""
    read_table(str(table))
    whole = place(table).read_bytes()
    place(table).write_bytes(whole[:size])
    assert read_table(str(table)) == DATA
    assert place(table).read_bytes() == whole
    assert parsed == ["table.toml"] * 2


def test_no_changed_byte_is_taken(table: Path, parsed: list[str]) -> None:
    """Each byte of what is kept is checked before it is used."""
    read_table(str(table))
    whole = place(table).read_bytes()
    for number in range(len(whole)):
        changed = bytearray(whole)
        changed[number] ^= 1
        place(table).write_bytes(changed)
        assert read_table(str(table)) == DATA
    assert len(parsed) == 1 + len(whole)


def test_another_form_is_not_taken(
    table: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a version of this package kept in another form is parsed again."""
    read_table(str(table))
    monkeypatch.setattr(kept, "FORM", kept.FORM + 1)
    assert read_table(str(table)) == DATA
    assert parsed == ["table.toml"] * 2


def test_a_folder_that_cannot_be_written_is_read(
    table: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is parsed each time, and nothing is left behind."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "makedirs", refuse)
        assert read_table(str(table)) == DATA
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        assert read_table(str(table)) == DATA
    assert os.listdir(place(table).parent) == []
    assert parsed == ["table.toml"] * 2


def test_a_file_in_place_of_the_folder_hurts_nobody(table: Path, parsed: list[str]) -> None:
    """As where the folder is read-only, the file is parsed each time."""
    (table.parent / "__pycache__").write_text("no folder")
    assert read_table(str(table)) == read_table(str(table)) == DATA
    assert parsed == ["table.toml"] * 2


@pytest.mark.parametrize(
    ("name", "value"), [("dont_write_bytecode", True), ("pycache_prefix", "/elsewhere")]
)
def test_nothing_is_kept_where_python_shall_not_write(
    table: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    """PYTHONDONTWRITEBYTECODE and PYTHONPYCACHEPREFIX are about these files, too."""
    monkeypatch.setattr(sys, name, value)
    assert read_table(str(table)) == DATA
    assert not place(table).parent.exists()


def test_what_is_kept_is_taken_where_python_shall_not_write(
    table: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a wheel or an image."""
    read_table(str(table))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert read_table(str(table)) == DATA
    assert parsed == ["table.toml"]


def test_a_mistake_in_a_table_is_told(table: Path) -> None:
    """The parser's error reaches the caller, and nothing is kept."""
    table.write_text("name = ", encoding="utf-8")
    with pytest.raises(tomllib.TOMLDecodeError):
        read_table(str(table))
    assert not place(table).exists()


def test_every_table_of_a_package_can_be_kept(tmp_path: Path, parsed: list[str]) -> None:
    """All TOML, and the JSON beside modules; a model's config.json is none."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    for name in ("tools/options.json", "models/gpt2.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    (tmp_path / "gpus.toml").write_text(TEXT, encoding="utf-8")
    files = keep_tables(str(tmp_path))
    assert [os.path.relpath(file, tmp_path) for file in files] == [
        os.path.join("__pycache__", "gpus.toml.marshal"),
        os.path.join("tools", "__pycache__", "options.json.marshal"),
    ]
    assert parsed == ["gpus.toml", "options.json"]
    assert read_table(str(tmp_path / "gpus.toml")) == DATA
    assert parsed == ["gpus.toml", "options.json"]


def test_tables_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    """Who builds a wheel learns that its tables are not in it."""
    (tmp_path / "gpus.toml").write_text(TEXT, encoding="utf-8")
    (tmp_path / "__pycache__").write_text("no folder")
    with pytest.raises(FileExistsError):
        keep_tables(str(tmp_path))


@pytest.mark.parametrize("path", TABLES, ids=[os.path.relpath(one, PACKAGE) for one in TABLES])
def test_a_table_of_the_package_is_the_same_kept(path: str) -> None:
    """Equal in every value, its type and the order of its keys; a date would not be kept."""
    text = Path(path).read_text(encoding="utf-8")
    data = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    stored = marshal.loads(marshal.dumps(kept._interned(data), kept.MARSHAL))
    assert repr(stored) == repr(data) == repr(read_table(path))


def test_the_tables_are_those_of_the_rooms() -> None:
    """What commands read is among them."""
    names = {os.path.relpath(path, PACKAGE).replace(os.sep, "/") for path in TABLES}
    assert {"catalog/gpus.toml", "cli/options.json", "tools/trl/sft.toml"} <= names
    assert not any(name.startswith(("catalog/models", "web/static")) for name in names)
