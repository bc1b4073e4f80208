"""Files that are read within a bound, and written whole or not at all."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.measure.cases_file import read_cases
from gpu_mem_calculator.runfile.text import files
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.runfile.text.files import check_writable, read_text, write_file
from gpu_mem_calculator.runfile.text.text_data import load_text

TOML_RUN = "[model]\nname = 'gpt2'"


@pytest.mark.parametrize("read", [load_text, read_rows, read_cases])
def test_a_device_without_an_end_is_refused(read: object) -> None:
    """Reading stops at the bound."""
    with pytest.raises(InputError, match=r"it is larger than .* bytes; give a smaller file"):
        read("/dev/zero")  # type: ignore[operator]


def test_a_file_is_read_up_to_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte more is refused in a sentence with the path."""
    file = tmp_path / "run.json"
    file.write_text(f'"{"x" * 8}"')
    assert len(read_text(file, most=10)) == 10
    with pytest.raises(InputError, match=r"run.json: it is larger than 9 bytes"):
        read_text(file, most=9)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """A pipe, as `--config <(...)` gives one, is read to its end, in pieces of any size."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("w") as file:
            for piece in ('{"model": ', '{"name": "gpt2"}', "}"):
                file.write(piece)
                file.flush()

    threading.Thread(target=write, daemon=True).start()
    assert load_text(pipe) == {"model": {"name": "gpt2"}}


def test_a_pipe_that_nobody_writes_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(files, "WRITER_SECONDS", 0.05)
    with pytest.raises(InputError, match="pipe: cannot be read, no program writes to this pipe"):
        load_text(pipe)


RUN = {"model": {"name": "gpt2"}}


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + json.dumps(RUN).encode(),
        json.dumps(RUN).encode("utf-16"),  # as PowerShell's > writes it
        codecs.BOM_UTF16_BE + json.dumps(RUN).encode("utf-16-be"),
        json.dumps(RUN, indent=1).replace("\n", "\r\n").encode(),
    ],
)
def test_text_of_windows_is_read(tmp_path: Path, data: bytes) -> None:
    """With byte order marks, in UTF-16, with its line ends."""
    file = tmp_path / "run.json"
    file.write_bytes(data)
    assert load_text(file) == RUN


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("run.json", b"", "the file is empty"),
        ("run.yaml", b" \n", "the file is empty"),
        ("run.toml", b"", "the file is empty"),
        ("run.json", b"\xe9", "it is not UTF-8 text; save it as UTF-8"),
        ("run.json", b"[" * 100_000, "not valid JSON, it is nested too deeply"),
        ("run.toml", b"a=" + b"[" * 10_000, "not valid TOML, it is nested too deeply"),
        ("run.json", b"9" * 5000, "not valid JSON, it has a number of more than 4,300 digits"),
        ("run.yaml", b"9" * 5000, "not valid YAML, it has a number of more than 4,300 digits"),
        ("run.toml", b"a = " + b"9" * 5000, "TOML, it has a number of more than 4,300 digits"),
        ("run.json", b'"model": {"name": "gpt2"}', "put { before it and } after it"),
        ("run.yaml", b"model: {}\nmodel: {}", "line 2: model is there twice; delete one"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    """With its path, and without Python's own words."""
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        load_text(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert not re.search("sys\\.|recursion|decode|char [0-9]", str(caught.value))


def test_an_address_is_answered_with_a_command(tmp_path: Path) -> None:
    """It is written as it was given."""
    address = "https://example.com/x.json?a=1&b=2"
    with pytest.raises(InputError, match=re.escape(f"curl -fsSL '{address}' | gpu-mem-calc ")):
        load_text(address)


@pytest.mark.parametrize("text", ['{"model": {"name": "gpt2"}}', "model:\n  name: gpt2", TOML_RUN])
def test_standard_input_is_read_in_any_format(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` has no ending to tell the format by."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert load_text("-") == RUN


def test_dates_of_toml_are_text(tmp_path: Path) -> None:
    """As they are in JSON."""
    file = tmp_path / "run.toml"
    file.write_text("a = 2024-01-01\nb = [2024-01-01T10:00:00]")
    assert load_text(file) == {"a": "2024-01-01", "b": ["2024-01-01T10:00:00"]}


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    """No temporary file is left; a new file gets the default permissions."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    old.chmod(0o640)
    before = old.stat().st_ino
    mask = os.umask(0o027)
    try:
        for file in (old, new):
            write_file(file, b"after", "--output")
    finally:
        os.umask(mask)
    assert [file.read_text() for file in (old, new)] == ["after", "after"]
    assert [file.stat().st_mode & 0o777 for file in (old, new)] == [0o640, 0o640]
    assert old.stat().st_ino != before
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says why, and no temporary file is left."""
    file = tmp_path / "report"
    file.write_text("before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"--output .*: cannot be written, No space left"):
        write_file(file, b"after", "--output")
    assert file.read_text() == "before"
    assert os.listdir(tmp_path) == ["report"]


def test_links_stay_links(tmp_path: Path) -> None:
    """A symbolic link's target is replaced; a file with a second name is written in place."""
    target, link, second = tmp_path / "target", tmp_path / "link", tmp_path / "second"
    link.symlink_to(target)
    write_file(link, b"one", "--output")
    assert link.is_symlink()
    assert target.read_text() == "one"
    os.link(target, second)
    write_file(link, b"two", "--output")
    assert second.read_text() == "two"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """It is not replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_writable(pipe, "--output")
    write_file(pipe, b"text", "--output")
    reader.join(10)
    assert heard == [b"text"]


@pytest.mark.parametrize("into", ["> out", "| cat > out", ">> out"])
def test_standard_output_is_written_to_by_its_name(into: str, tmp_path: Path) -> None:
    """What else is printed comes after it, and what a file had before stays where it is appended
    to.
    """
    script = (
        "import sys; from gpu_mem_calculator.runfile.text.files import write_file; print('a');"
        "write_file('/dev/stdout', b'b\\n', '--output'); print('c')"
    )
    (tmp_path / "out").write_text("before\n")
    subprocess.run(
        ["bash", "-c", f'"$PY" -c "$SCRIPT" {into}'],
        env={**os.environ, "PY": sys.executable, "SCRIPT": script},
        cwd=tmp_path,
        check=True,
    )
    begins = "before\n" if ">>" in into else ""
    assert (tmp_path / "out").read_text() == f"{begins}a\nb\nc\n"


@pytest.mark.parametrize("name", ["no/such/folder", ".", "x" * 300, "a\0b", "/dev/full"])
def test_what_cannot_be_written_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check and the write raise the same error, and the check writes nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"--output .*: cannot be written, ") as caught:
        write_file(name, b"text", "--output")
    if name != "/dev/full":
        with pytest.raises(InputError) as checked:
            check_writable(name, "--output")
        assert str(checked.value) == str(caught.value)
    check_writable("new", "--output")
    assert not os.listdir(tmp_path)


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """Old ones of ours; a new one may belong to a process that still writes."""
    old, new, other = (tmp_path / name for name in (".gpu-mem-calc-a", ".gpu-mem-calc-b", "c"))
    for file in (old, new, other):
        file.write_text("x")
    for file in (old, other):
        os.utime(file, (1, 1))
    write_file(tmp_path / "out", b"data", "--output")
    assert sorted(one.name for one in tmp_path.iterdir()) == [new.name, "c", "out"]
