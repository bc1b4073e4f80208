"""The file of measured runs stays whole."""

from __future__ import annotations

import errno
import json
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.measure.runs_file import RunsFile
from gpu_mem_calculator.runfile.text.errors import InputError


def test_rows_are_on_disk_as_soon_as_they_are_added(tmp_path: Path) -> None:
    """Each row is a line of its own, readable while the file is still in use."""
    path = tmp_path / "runs.jsonl"
    file = RunsFile(path)
    file.add({"id": "a"})
    assert path.read_text() == '{"id": "a"}\n'
    file.add({"id": "ü"})
    assert [json.loads(line)["id"] for line in path.read_text("utf-8").splitlines()] == ["a", "ü"]


def test_what_is_there_is_kept_and_known(tmp_path: Path) -> None:
    """Rows of an earlier run are read; failed ones can be left out."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{"id": "a"}\n\n{"id": "b", "failed": "out of memory"}\n')
    file = RunsFile(path)
    assert file.ids() == {"a", "b"}
    assert file.ids(failed=False) == {"a"}
    assert file.repaired == ""


def test_a_last_line_that_a_kill_cut_short_is_removed_and_reported(tmp_path: Path) -> None:
    """What came before it stays, byte for byte, and the next row starts a new line."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b", "meas')
    file = RunsFile(path)
    assert "incomplete" in file.repaired
    assert file.ids() == {"a"}
    file.add({"id": "c"})
    assert path.read_text() == '{"id": "a"}\n{"id": "c"}\n'


def test_a_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    """A whole row that lacks only the line end gets one."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{"id": "a"}')
    file = RunsFile(path)
    file.add({"id": "b"})
    assert file.ids() == {"a", "b"}
    assert path.read_text() == '{"id": "a"}\n{"id": "b"}\n'


def test_another_kind_of_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A file that is something else is not added to."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n[1, 2]\n")
    with pytest.raises(InputError, match=r"line 1: not a measured run"):
        RunsFile(path)
    assert path.read_text() == "dear diary\n[1, 2]\n"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """Known before anything is measured."""
    with pytest.raises(InputError, match="cannot be written, No such file or directory"):
        RunsFile(tmp_path / "missing" / "runs.jsonl")
    with pytest.raises(InputError, match="cannot be read, Is a directory"):
        RunsFile(tmp_path)


def test_opening_a_new_file_leaves_nothing(tmp_path: Path) -> None:
    """The file is there with its first row."""
    RunsFile(tmp_path / "runs.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_short_write_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full in the middle of a line: one sentence, and the file is as it was."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{"id": "a"}\n')
    file = RunsFile(path)
    pieces = [5]

    class Full(FileIO):
        def write(self, data: Any) -> int:
            if not pieces:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[: pieces.pop()])

    monkeypatch.setattr(Path, "open", lambda self, mode, **_: Full(self, mode.replace("b", "")))
    with pytest.raises(InputError, match="cannot be written, No space left on device"):
        file.add({"id": "b"})
    monkeypatch.undo()
    assert path.read_text() == '{"id": "a"}\n'
    assert file.ids() == {"a"}
