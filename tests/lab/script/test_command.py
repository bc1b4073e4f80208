"""`gpu-mem-calc trace -- COMMAND`, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.ledger.units import KIB, MIB

from .conftest import EXAMPLES

ON_H200 = 72_859_648
PLAIN = str(EXAMPLES / "plain.py")


def test_the_answer(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answer as of other traces; stdout has it alone, and nothing is saved."""
    monkeypatch.chdir(tmp_path)
    words = ["trace", "--gpu", "4090", "--format", "json", "--", "python", PLAIN]
    assert main(words) == 0
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert answer["allocated_bytes"] == ON_H200 - 2 * (32 * MIB - 8320 * KIB)  # cuBLAS
    assert answer["gpu_memory_bytes"] < 26e9
    assert (answer["verdict"], answer["model"]) == ("fits", PLAIN)
    assert answer["trainable_parameters"] == 106_816
    assert "step 0: loss 1.00" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
def test_a_scripts_error(capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the script's traceback, and one sentence."""
    assert main(["trace", "--", "python", str(EXAMPLES / "failing.py"), "own_error"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].endswith("failing.py failed with its own error")
    assert "RuntimeError: a and b must have same reduction dim" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--shapes", "seq_len=8"], "--shapes is for a script"),
        (["--gpu", "h100"], "--gpu is for a script; use --set hardware.gpu=h100"),
        (["--preset", "gpt2", "--", "python", PLAIN], "--preset describes a run"),
        (["--set", "training.batch_size=2", "--", "python", PLAIN], "only hardware.* can be set"),
        (["--shapes", "width=8", "--", "python", PLAIN], "known names are seq_len"),
        (["--shapes", "seq_len=x", "--", "python", PLAIN], "--shapes seq_len='x' must be"),
        (["--shapes", "dtype=int4", "--", "python", PLAIN], "must be one of bfloat16"),
    ],
)
def test_options_that_do_not_belong(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence each."""
    assert main(["trace", *words]) == 2
    assert sentence in capsys.readouterr().err
