"""The registry: each tool's row is in its own folder, and found by itself."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from gpu_mem_calculator.tools import rows
from gpu_mem_calculator.tools.reading.tools import FORMATS
from gpu_mem_calculator.tools.rows import FOLDER, READ, REFUSED, TRANSLATE, WRITE, tool_rows
from gpu_mem_calculator.tools.translation.tools import REFUSED_TOOLS, TOOLS
from gpu_mem_calculator.tools.writing.writers import WRITERS

PACKAGE = "gpu_mem_calculator.tools"
FILES = {path.parent.name for path in Path(FOLDER).glob("*/tool.toml")}


def test_a_file_has_the_kinds_of_rows_that_are_known() -> None:
    """Every folder with a file is a package."""
    assert {*rows.tool_files()} == FILES
    assert len(FILES) > 20
    for name, data in rows.tool_files().items():
        assert data.keys() <= {READ, TRANSLATE, REFUSED, WRITE}
        assert (Path(FOLDER) / name / "__init__.py").is_file()


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_that_is_read_has_a_reader(name: str) -> None:
    """Of commands where its row names programs, of files where it names keys."""
    row, module = FORMATS[name], import_module(f"{PACKAGE}.{name}.read")
    commands = row.programs or row.modules or row.paths or row.options
    assert hasattr(module, "read_command") or not commands
    assert hasattr(module, "read_data") or not row.keys
    assert commands or row.keys


@pytest.mark.parametrize("name", TOOLS)
def test_a_program_has_its_table_and_its_translation(name: str) -> None:
    """In the folder of its row."""
    folder = next(one for one, data in rows.tool_files().items() if name in data.get(TRANSLATE, ()))
    assert TOOLS[name].module.partition(".")[0] == folder
    assert TOOLS[name].arguments.partition("/")[0] == folder
    assert hasattr(import_module(f"{PACKAGE}.{TOOLS[name].module}"), "translate")


def test_places_order_the_rows_of_a_kind() -> None:
    """No two have the same one; a row without one is behind, by its name."""
    for kind in (READ, TRANSLATE, WRITE):
        found = [data[kind] for data in rows.tool_files().values() if kind in data]
        each = found if kind == READ else [row for one in found for row in one.values()]
        places = [row["place"] for row in each if "place" in row]
        assert len(places) == len({*places})
    assert list(FORMATS)[-1] == "huggingface"  # its patterns take any script in Python
    assert not {*TOOLS} & {*REFUSED_TOOLS}


def test_a_new_tool_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else names it."""
    for name, place in (("newtune", ""), ("another", ""), ("early", "place = 1")):
        (tmp_path / name).mkdir()
        text = f'[read]\n{place}\ntitle = "{name}"\nprograms = ["{name}"]\n'
        (tmp_path / name / "tool.toml").write_text(text, encoding="utf-8")
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(rows, "FOLDER", str(tmp_path))
    rows.tool_files.cache_clear()
    try:
        assert list(tool_rows(READ)) == ["early", "another", "newtune"]
        assert tool_rows(WRITE) == {}
    finally:
        monkeypatch.undo()
        rows.tool_files.cache_clear()
    assert {*tool_rows(WRITE)} == {*WRITERS}
