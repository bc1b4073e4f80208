"""`make drift` on small wheels: what changed between two releases of a framework."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpu_mem_calculator.ledger.frameworks import PEFT, TORCH
from maintenance.drift import index, snapshot
from maintenance.drift.__main__ import compared, main
from maintenance.drift.compare import CHANGED, GONE, MOVED, SAME, CodeChange, compare
from maintenance.drift.report import Row, report
from maintenance.drift.trees import Tree
from tests.conftest import ROOT

ARGUMENTS = """
from dataclasses import dataclass, field

@dataclass
class LoraConfig:
    r: int = 8
    alpha: int = field(default=8, metadata={"help": "scale"})
    bias: str
    old: bool = False
"""
NEW_ARGUMENTS = ARGUMENTS.replace("r: int = 8", "r: int = 16").replace("old: bool", "new: bool")
LAYERS = '''
SCALE = 2

class Linear:
    """A layer."""

    def forward(self, x):
        """Multiply."""
        y = x * SCALE  # a comment
        return y

    def backward(self, grad):
        return grad

def kept(a, b=1):
    return a + b

def moves(a):
    return a * 7

def leaves(a):
    return a - 9
'''
NEW_LAYERS = '''
SCALE = 2

class Linear:
    def forward(self, x):
        y = x * SCALE
        y = y + 1
        return y

    def backward(self, grad):
        return grad

def kept(a,
         b=1):
    """Described now."""
    return a + b
'''
CITED = ("Linear.forward", "kept", "moves", "leaves")


def wheel(folder: Path, files: dict[str, str], version: str = "0.21.2") -> Path:
    """A wheel with these files below peft/."""
    path = folder / f"peft-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: peft\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"peft/{name}", text)
        archive.writestr(f"peft-{version}.dist-info/METADATA", metadata)
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"peft-{version}.dist-info/WHEEL", tag)
        archive.writestr(f"peft-{version}.dist-info/RECORD", "")
    return path


@pytest.fixture
def record(tmp_path: Path) -> snapshot.Record:
    """What is kept of PEFT as it was read: LoraConfig, four definitions, one whole file."""
    folder = tmp_path / "read"
    folder.mkdir()
    files = {"tuners/lora/config.py": ARGUMENTS, "layers.py": LAYERS, "whole.py": ""}
    cited = [snapshot.Resolved("step/ours.py", "PEFT", "peft/layers.py", CITED)]
    cited.append(snapshot.Resolved("step/ours.py", "PEFT", "peft/whole.py", ()))
    return snapshot.record(PEFT, Tree(wheel(folder, files)), cited)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A newer wheel: a changed default, a changed, a moved and a removed function."""
    moved = {"other.py": "def moves(a):\n    return a * 7\n"}
    files = {"tuners/lora/config.py": NEW_ARGUMENTS, "layers.py": NEW_LAYERS, **moved}
    return wheel(tmp_path, files, "0.22.0")


def changes(record: snapshot.Record, path: Path) -> dict[str, CodeChange]:
    """What became of each cited definition, by its name."""
    code = compare("PEFT", record, Tree(path)).code
    return {change.key.partition("::")[2]: change for change in code}


def test_a_changed_default_and_new_and_removed_fields_are_listed(
    record: snapshot.Record, newer: Path
) -> None:
    """With the old and the new default."""
    (schema,) = compare("PEFT", record, Tree(newer)).fields
    assert schema.defaults == {"r": ("8", "16")}
    assert (schema.added, schema.removed) == ({"new": "False"}, {"old": "False"})


def test_a_function_with_another_docstring_comment_or_layout_is_the_same(
    record: snapshot.Record, newer: Path
) -> None:
    """Only statements count."""
    assert changes(record, newer)["kept"].kind == SAME


def test_a_changed_function_has_the_size_of_its_change(
    record: snapshot.Record, newer: Path
) -> None:
    """Statements added and removed, and who cites it."""
    change = changes(record, newer)["Linear.forward"]
    assert (change.kind, change.added, change.removed) == (CHANGED, 1, 0)
    assert change.by == ("step/ours.py",)


def test_a_moved_function_is_found_in_its_new_file(record: snapshot.Record, newer: Path) -> None:
    """It is the same, elsewhere."""
    change = changes(record, newer)["moves"]
    assert (change.kind, change.place) == (MOVED, "peft/other.py::moves")


def test_a_renamed_function_is_found_by_its_body(record: snapshot.Record, tmp_path: Path) -> None:
    """In the same file."""
    path = wheel(tmp_path, {"layers.py": LAYERS.replace("def leaves", "def _gone")}, "0.22.0")
    change = changes(record, path)["leaves"]
    assert (change.kind, change.place) == (MOVED, "peft/layers.py::_gone")


def test_removed_functions_and_files_are_gone(record: snapshot.Record, newer: Path) -> None:
    """Nothing has their name or their statements."""
    assert changes(record, newer)["leaves"].kind == GONE
    assert compare("PEFT", record, Tree(newer)).files == {"peft/whole.py": ["step/ours.py"]}


def test_a_release_without_changes_has_no_details(record: snapshot.Record, tmp_path: Path) -> None:
    """The row has zeros, and nothing follows it."""
    files = {"tuners/lora/config.py": ARGUMENTS, "layers.py": LAYERS, "whole.py": ""}
    drift = compare("PEFT", record, Tree(wheel(tmp_path, files, "0.21.3")))
    header, row = report([Row("PEFT", "0.21.2", "0.21.3", drift)]).splitlines()
    assert header.split()[:3] == ["framework", "read", "newest"]
    assert " ".join(row.split()) == "PEFT 0.21.2 0.21.3 +0 −0 ~0 0 0 0 of 4"


def test_the_report_has_a_table_and_then_details(record: snapshot.Record, newer: Path) -> None:
    """Framework, versions, counts; then each change with our files."""
    drift = compare("PEFT", record, Tree(newer))
    note = Row("torch", "2.13.0", "2.15.0", note="its wheels are large")
    lines = report([Row("PEFT", "0.21.2", "0.22.0", drift), note]).splitlines()
    assert " ".join(lines[1].split()) == "PEFT 0.21.2 0.22.0 +1 −1 ~1 1 1 2 of 4"
    assert lines[4:] == [
        "torch: its wheels are large",
        "",
        "PEFT 0.21.2 -> 0.22.0",
        "  LoraConfig: + new=False; − old; ~ r: 8 -> 16",
        "  changed  peft/layers.py::Linear.forward (+1 −0 statements)  [step/ours.py]",
        "  gone     peft/layers.py::leaves  [step/ours.py]",
        "  moved    peft/layers.py::moves -> peft/other.py::moves  [step/ours.py]",
        "  gone     peft/whole.py  [step/ours.py]",
    ]


def test_pip_finds_the_newest_wheel_and_it_is_compared(
    record: snapshot.Record, newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder of wheels, as from an index."""
    wheel(newer.parent, {"layers.py": LAYERS})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(newer.parent))
    folder = tmp_path / "downloads"
    folder.mkdir()
    row = compared(PEFT, record, {}, folder)
    assert (row.newest, row.note) == ("0.22.0", "")
    assert row.drift is not None
    assert len(row.drift.code) == len(CITED)


def test_without_an_index_each_framework_has_a_sentence(
    record: snapshot.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no traceback."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(index, "TARGETS", ((),))
    row = compared(PEFT, record, {}, tmp_path)
    assert row.note == "no release can be listed; is the package index reachable?"


@pytest.mark.parametrize(
    ("versions", "note"),
    [
        (["2.15.0", "2.13.0"], "2.15.0 is newer; its wheels are large, so nothing is compared"),
        (["2.13.0", "2.12.0"], ""),
        (
            ["2.12.0"],
            "2.13.0 is not among the releases that can be installed here (newest: 2.12.0); nothing "
            "is compared",
        ),
    ],
)
def test_a_large_wheel_is_named_and_not_downloaded(
    versions: list[str], note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of pip but the list of versions."""
    monkeypatch.setattr(index, "_versions", lambda package, target: versions)
    monkeypatch.setattr(index, "wheel", lambda *_: pytest.fail("a large wheel is downloaded"))
    record = {"version": TORCH.version, "schemas": {}, "cited": {}, "files": {}}
    assert compared(TORCH, record, {}, tmp_path).note == note


def test_a_release_without_a_wheel_is_named(
    record: snapshot.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source distribution would have to be built, which runs its code."""
    monkeypatch.setattr(index, "_versions", lambda package, target: ["0.22.0", "0.21.2"])
    monkeypatch.setattr(index, "_pip", lambda *_: "")
    row = compared(PEFT, record, {}, tmp_path)
    assert row.newest == "0.22.0"
    assert row.note == "0.22.0 has no wheel that can be downloaded, so nothing is compared"


def test_a_snapshot_of_another_version_is_not_compared(tmp_path: Path) -> None:
    """After the table has changed, the snapshot is written anew first."""
    record = {"version": "0.0.1", "schemas": {}, "cited": {}, "files": {}}
    note = compared(PEFT, record, {}, tmp_path).note
    assert note == "the snapshot is of 0.0.1; write it anew with --update PEFT"


def test_a_snapshot_is_read_as_it_was_written(record: snapshot.Record, tmp_path: Path) -> None:
    """A line for each schema, definition and file."""
    path = tmp_path / "snapshot.json"
    snapshot.save({"PEFT": record}, path)
    assert snapshot.load(path) == {"PEFT": record}
    assert sum("::" in line for line in path.read_text("utf-8").splitlines()) == len(CITED)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pytroch"], "'pytroch' is not in the table; it has torch, transformers"),
        (["--source", "peft=/nowhere.whl"], "--source '/nowhere.whl': there is no such wheel"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 2."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_the_command_compares_a_given_wheel(newer: Path) -> None:
    """Without asking pip, and without writing anything."""
    before = snapshot.TARGET.read_bytes()
    command = subprocess.run(
        [sys.executable, "-m", "maintenance.drift", "peft", "--source", f"peft={newer}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PEFT 0.21.2 -> peft-0.22.0-py3-none-any.whl" in command.stdout
    assert "~ " in command.stdout
    assert snapshot.TARGET.read_bytes() == before
