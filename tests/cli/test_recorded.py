"""calculate and explain on a module of one's own: --function, --with and --record."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main

CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()

def batch(layers=3):
    return Net(layers), torch.randn(128, 512)

def broken():
    raise ValueError("no such file")
"""
FP32 = ("--set", "training.precision=fp32", "--set", "hardware.gpu=h200")
FUNCTION = ("--function", "own_net:batch")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module in it."""
    pytest.importorskip("torch")
    (tmp_path / "own_net.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_net", None)


def test_a_function_is_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    """Its parameters are counted, its arguments are given."""
    assert main(["calculate", *FUNCTION, "--with", "layers=5", *FP32, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_parameters"] == 5 * (512 * 512 + 512)
    assert found["allocated_bytes"] > 0


def test_a_record_needs_no_torch(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept of a function gives the same answer where torch is not there."""
    assert main(["calculate", *FUNCTION, "--record", "net.json", *FP32, "-f", "json"]) == 0
    first = json.loads(capsys.readouterr().out)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["calculate", "--record", "net.json", *FP32, "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main(["explain", "--record", "net.json", *FP32]) == 0
    assert "the module's own code" in " ".join(capsys.readouterr().out.split())


def test_the_report_says_how_to_explain(capsys: pytest.CaptureFixture[str]) -> None:
    """The line to paste names the function; no sequence is promised."""
    assert main(["calculate", *FUNCTION, *FP32, "--long"]) == 0
    shown = capsys.readouterr().out
    assert "--function own_net:batch" in " ".join(shown.split())
    assert "longest" not in shown


def test_every_zero_stage_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    """One record for all: 8 ranks keep less of it at stages 1 and 2; 3 gathers ahead."""
    eight = (
        "--set",
        "engine.type=deepspeed",
        "--set",
        "hardware.num_gpus=8",
        "--set",
        "engine.reduce_bucket_size=1000",
    )
    words = ["--with", "layers=12", "--record", "net.json", "-f", "json"]
    assert main(["calculate", *FUNCTION, *words, *FP32, *eight]) == 0
    capsys.readouterr()
    sizes = []
    for stage in range(4):
        words = ["--set", f"engine.zero_stage={stage}", "-f", "json"]
        assert main(["calculate", "--record", "net.json", *FP32, *eight, *words]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["allocated_bytes"])
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--function", "own_net:broken"], "no such file"),
        (["--function", "own_net:nothing"], "has no function 'nothing'"),
        ([*FUNCTION, "--preset", "gpt2"], "--function brings the model"),
        (["--record", "missing.json"], "--record missing.json: no such file"),
        (["--record", "own_net.py"], "it is not JSON"),
        (["--with", "layers=3"], "--with is for the arguments of --function"),
        ([*FUNCTION, "--set", "training.lora.r=8"], "lora"),
    ],
)
def test_faults_are_sentences(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    assert main(["calculate", *words, *FP32]) == 2
    assert sentence in capsys.readouterr().err
