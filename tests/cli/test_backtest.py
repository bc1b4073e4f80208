"""`gpu-mem-calc backtest`: the table, the JSON, the picture, and mistakes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.conftest import HERE, measured_runs, small_run

from .conftest import Command

RUNS = HERE / "ground_truth" / "runs.jsonl"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first measured run of each group, and the first whose least memory is known."""
    rows = measured_runs()
    chosen = {row["group"]: row for row in reversed(rows)}
    least = next(row for row in rows if "survives_in_bytes" in row["measured"])
    path = tmp_path_factory.mktemp("runs") / "few.jsonl"
    kept = [row for row in rows if row in (*chosen.values(), least)]
    path.write_text("\n".join(map(json.dumps, kept)))
    return path


def test_the_table_has_groups_worst_rows_and_refusals(command: Command, few: Path) -> None:
    """One screen for each metric, 80 columns wide."""
    answer = command("backtest", few)
    lines = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert max(map(len, lines)) <= 80
    heads = [line.split()[0] for line in lines if line.endswith("danger  worst run")]
    assert heads == ["allocated", "start-up", "reserved", "needs", "nvidia-smi"]
    first = next(i for i, line in enumerate(lines) if line.startswith("allocated"))
    groups = {line.split()[0]: line.split() for line in lines[first + 1 : first + 9]}
    engines = {"single", "ddp", "fsdp", "peft", "deepspeed", "megatron", "inference"}
    assert set(groups) == {*engines, "all"}
    assert groups["single"][1] == "2"
    assert float(groups["single"][2]) < 0.05
    assert sum(line.startswith("  ") and line.endswith("%") for line in lines) == 5


def understated(tmp_path: Path) -> Path:
    """Runs of DDP and FSDP, the first of which is said to have taken 5 % more than it did."""
    rows = [row for row in measured_runs() if row["group"] in ("ddp", "fsdp")]
    measured = rows[0]["measured"]
    measured["allocated_bytes"] = measured["allocated_bytes"] * 105 // 100
    path = tmp_path / "understated.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_dangerous_underestimate_is_counted(command: Command, tmp_path: Path) -> None:
    """The run that is 5 % under stands first among the worst."""
    lines = command("backtest", understated(tmp_path)).out.splitlines()
    ddp = next(line.split() for line in lines if line.startswith("  ddp"))
    assert ddp[6] == "1"
    first = lines[next(i for i, line in enumerate(lines) if line.startswith("furthest")) + 1]
    assert first.split()[-2] == ddp[4]
    assert -5 < float(ddp[4]) < -4.7


def test_phases_have_a_table_of_their_own(command: Command, few: Path) -> None:
    """By kind, first and later steps apart."""
    lines = command("backtest", few, "--phases").out.splitlines()
    names = [line[2:17].strip() for line in lines]
    kinds = ["start model", "start init", "first forward", "first optimizer", "later backward"]
    assert [names.index(kind) for kind in kinds] == sorted(names.index(kind) for kind in kinds)
    assert max(map(len, lines)) <= 80


def test_json_is_the_whole_report(command: Command, few: Path, tmp_path: Path) -> None:
    """Metrics, rows with phases, and refusals, also into a file."""
    path = tmp_path / "score.json"
    answer = command("backtest", few, "--format", "json", "--phases", "--output", path)
    data = json.loads(path.read_text())
    assert (answer.code, answer.out) == (0, "")
    assert data["metrics"]["allocated"]["overall"]["n"] == len(data["rows"]) == 8
    assert data["refused"] == []
    assert data["rows"][0]["phases"]["s1.a0.bwd"]["measured"] == 10194960384


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_the_picture_shows_every_run(
    command: Command, few: Path, tmp_path: Path, ending: str
) -> None:
    """Each run twice, each group in the legend, the worst by name, nothing from elsewhere."""
    path = tmp_path / f"score.{ending}"
    answer = command("backtest", few, "--picture", path)
    assert answer.code == 0
    text = path.read_text()
    drawn = text[text.index("<svg") : text.index("</svg>") + 6]
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    notes = [p for p in root.iter(f"{space}path") if p.find(f"{space}title") is not None]
    assert len(notes) == 2 * 8
    labels = [t.text for t in root.iter(f"{space}text") if t.get("class") == "label"]
    assert labels[0] in answer.out.partition("furthest off")[2].splitlines()[1]
    keys = [t.text for t in root.iter(f"{space}text") if t.get("class") == "key"]
    assert keys == ["single", "ddp", "fsdp", "inference", "peft", "deepspeed", "megatron"]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text


def test_names_in_the_picture_are_escaped(command: Command, tmp_path: Path) -> None:
    """A run and a group may be called anything."""
    row = {
        "id": "<b>&",
        "group": "</svg>",
        "config": small_run(gpus=1),
        "measured": {"allocated_bytes": 10**9},
    }
    runs, path = tmp_path / "r.jsonl", tmp_path / "p.svg"
    runs.write_text(json.dumps(row))
    assert command("backtest", runs, "--picture", path).code == 0
    words = " ".join(ElementTree.fromstring(path.read_text()).itertext())
    assert "<b>&" in words
    assert "</svg>" in words


def test_the_picture_marks_what_is_dangerous(command: Command, few: Path, tmp_path: Path) -> None:
    """Where an error is beyond 2 %, the line is drawn."""
    for runs, there in ((few, False), (understated(tmp_path), True)):
        path = tmp_path / "p.svg"
        command("backtest", runs, "--picture", path)
        assert ("dangerous: more than 2 % too little" in path.read_text()) is there


def serving(tmp_path: Path) -> Path:
    """A file of rows of transformers for an engine that has other options."""
    path = tmp_path / "serving.jsonl"
    rows = [r for r in measured_runs() if "inference" in r["config"]]
    for row in rows:
        row["config"]["inference"]["engine"] = "llamacpp"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_file_of_refused_rows_is_no_error(command: Command, tmp_path: Path) -> None:
    """Each sentence once, with its number of rows."""
    answer = command("backtest", serving(tmp_path))
    assert answer.code == 0
    assert answer.out.startswith("0 measured runs against the estimate, 4 refused")
    assert answer.out.count("inference.attention is not an option of llama.cpp") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.jsonl"], "missing.jsonl: no such file"),
        ([RUNS, "--picture", "x.png"], "--picture x.png must end in .svg or .html"),
        ([RUNS, "--picture", "/nowhere/x.svg"], "--picture /nowhere/x.svg: cannot be written"),
        ([RUNS, "--rung", "guess"], "--rung 'guess' is not one of estimate, trace"),
        ([RUNS, "--jobs", "0"], "--jobs '0' must be a whole number, 1 or more"),
        ([], "backtest needs RUNS.jsonl"),
    ],
)
def test_a_mistake_is_one_sentence(command: Command, words: list[str], said: str) -> None:
    """Exit code 2 and a line on stderr."""
    answer = command("backtest", *words)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err


def test_a_picture_of_nothing_is_refused(command: Command, tmp_path: Path) -> None:
    """Without a predicted run there is nothing to draw."""
    answer = command("backtest", serving(tmp_path), "--picture", tmp_path / "x.svg")
    assert answer.code == 2
    assert "nothing to draw" in answer.err


def test_progress_is_for_terminals(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that is written over, and gone in the end."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    said = command("backtest", serving(tmp_path)).err
    assert "0/4  infer-gpt2-b16-s512" in said
    assert said.endswith("\r\x1b[K")


def test_bad_lines_are_all_named(command: Command, tmp_path: Path) -> None:
    """A sentence a line, exit code 2."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": 1}\nnot json\n')
    answer = command("backtest", path)
    assert answer.code == 2
    assert "r.jsonl line 1: 'group' is missing" in answer.err
    assert "r.jsonl line 2: not valid JSON" in answer.err


def test_an_error_of_hundreds_leaves_room_for_small_ones(command: Command, tmp_path: Path) -> None:
    """The axis bends: the line at -2 % stays well apart from 0."""
    rows = [
        {
            "id": str(size),
            "group": "x",
            "config": small_run(gpus=1),
            "measured": {"allocated_bytes": size},
        }
        for size in (10**7, 10**9)
    ]
    runs, path = tmp_path / "r.jsonl", tmp_path / "p.svg"
    runs.write_text("\n".join(map(json.dumps, rows)))
    assert command("backtest", runs, "--picture", path).code == 0
    root = ElementTree.fromstring(path.read_text())
    texts = {t.text: float(t.get("y", 0)) for t in root.iter() if t.tag.endswith("}text")}
    assert texts["-2"] - texts["0"] > 20
    assert texts["+100"] < texts["+10"] < texts["+2"]
