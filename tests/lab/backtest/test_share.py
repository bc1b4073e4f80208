"""`backtest --share`: what a user can send, without what names a person, a machine or a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.backtest.score import backtest
from gpu_mem_calculator.lab.backtest.share import shared_rows
from tests.conftest import ROOT

ROWS = ROOT / "tests" / "ground_truth"
TOKEN = "hf_Zq7hunter2Kx9Aa11Bb22Cc33"
# What must not be in a shared row, wherever it stood.
PRIVATE = (TOKEN, "alice", "node17", "acme", "/home", "10.1.2.3", "hunter2", "Kx9")


def rows(name: str, count: int, key: str = "training") -> list[dict[str, Any]]:
    """The first rows of a file of measured runs that have a section."""
    lines = (ROWS / f"{name}.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines if line.strip()]
    return [row for row in found if key in row["config"] and "record" not in row][:count]


def private(row: dict[str, Any]) -> dict[str, Any]:
    """A row with what a user's own has: names, paths, addresses and secrets, everywhere."""
    config = dict(row["config"])
    inner = config["model"].get("config")
    if inner is not None:
        own = {"_name_or_path": "/home/alice/acme-7b", "auto_map": {"AutoModel": "acme--code.Acme"}}
        config["model"] = {**config["model"], "config": {**inner, **own}}
    config["limits"] = [{"key": "/home/alice/train.py line 3", "why": "acme's own"}]
    if "program" in config:
        args = {"output_dir": "/home/alice/out", "run_name": "acme-secret", "hub_token": TOKEN}
        args |= {"hub_model_id": "acme/model", "report_to": "none"}
        program = config["program"]
        config["program"] = {**program, "args": {**program.get("args", {}), **args}}
    environment = {
        **row["environment"],
        "hostname": "node17.acme.example",
        "user": "alice",
        "ip": "10.1.2.3",
        "path": "/home/alice/.venv",
        "WANDB_API_KEY": "hunter2hunter2",
        "driver": "alice's",
    }
    return {
        **row,
        "id": f"alice-{row['id']}",
        "group": "acme",
        "config": config,
        "measured": {**row["measured"], "log": f"/home/alice/{TOKEN}", "note": "node17"},
        "environment": environment,
        "failed": "",
        "notes": "ran on node17 by alice",
        "command": f"HF_TOKEN={TOKEN} python /home/alice/train.py",
    }


def written(folder: Path, found: list[dict[str, Any]]) -> str:
    """A file of rows."""
    path = folder / "runs.jsonl"
    path.write_text("\n".join(map(json.dumps, found)))
    return str(path)


@pytest.mark.parametrize(("name", "key"), [("kept", "training"), ("programs_drawn", "program")])
def test_nothing_private_is_shared_and_the_score_is_the_same(
    tmp_path: Path, name: str, key: str
) -> None:
    """Of measured runs into which names, paths and secrets were planted."""
    given = rows(name, 3, key)
    assert len(given) == 3
    planted = [private(row) for row in given]
    assert all(word in json.dumps(planted) for word in PRIVATE)
    found = [one.row for one in shared_rows(written(tmp_path, planted))]
    text = json.dumps(found)
    assert [word for word in PRIVATE if word in text] == []
    scored = (backtest(rows_from(given)), backtest(rows_from(found)))
    first, second = ([one.metrics for one in report.rows] for report in scored)
    assert first == second
    assert all(row["environment"]["gpu"] == "NVIDIA H200" for row in found)
    assert all(row["environment"]["torch"] for row in found)
    assert len({row["id"] for row in found}) == 3


def test_a_private_model_is_its_shape(tmp_path: Path) -> None:
    """A folder's name is left out, its sizes are kept; a preset keeps its name."""
    (row,) = rows("kept", 1)
    folder = tmp_path / "acme-secret"
    folder.mkdir()
    shape = row["config"]["model"]["config"]
    (folder / "config.json").write_text(json.dumps({**shape, "_name_or_path": "acme/alice"}))
    mine = {**row, "config": {**row["config"], "model": {"name": str(folder)}}}
    (shared,) = shared_rows(written(tmp_path, [mine]))
    assert "acme" not in json.dumps(shared.row)
    assert "model.name" in shared.left_out
    assert shared.row["config"]["model"]["config"]["hidden_size"] == shape["hidden_size"]
    preset = {**row, "config": {**row["config"], "model": {"name": "gpt2"}}}
    preset["config"]["training"] = {"batch_size": 1, "seq_len": 256}
    (shared,) = shared_rows(written(tmp_path, [preset]))
    assert shared.row["config"]["model"] == {"name": "gpt2"}


def test_a_row_whose_prediction_would_change_is_not_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said, with its line; nothing is written."""
    (row,) = rows("kept", 1)
    module = {**row, "function": "acme.train:model"}
    out = tmp_path / "out.jsonl"
    assert main(["backtest", written(tmp_path, [module]), "--share", str(out)]) == 2
    assert "is not shared" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By names of keys, never their values; what it writes can be scored."""
    planted = private(rows("kept", 1)[0])
    out = tmp_path / "out.jsonl"
    assert main(["backtest", written(tmp_path, [planted]), "--share", str(out)]) == 0
    said = capsys.readouterr().out
    assert "1 run; look at" in said
    for name in ("environment.hostname", "environment.WANDB_API_KEY", "limits", "command"):
        assert name in said
    assert not any(word in said for word in (TOKEN, "hunter2", "node17", "acme.example"))
    assert main(["backtest", str(out)]) == 0
