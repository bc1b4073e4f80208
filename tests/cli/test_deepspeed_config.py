"""DeepSpeed's JSON on the command line, wherever a run file is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.cli.parser import Parser
from gpu_mem_calculator.cli.run_source import run_data, run_words
from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.runfile.text.errors import InputError

FILE: dict[str, Any] = {
    "train_batch_size": 64,
    "gradient_accumulation_steps": 4,
    "steps_per_print": 10,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8},
}
EIGHT = ["--set", "hardware.num_gpus=8"]
Make = Callable[..., str]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """A file for DeepSpeed, with changes."""

    def make(**changes: Any) -> str:
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps({**FILE, **changes}))
        return str(path)

    return make


def test_calculate_takes_the_model_beside_the_file(
    made: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run as a run file that says all of it."""
    assert main(["calculate", "-c", made(), "--model", "gpt2", *EIGHT, "-f", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    run = {
        "model": {"name": "gpt2"},
        "hardware": {"num_gpus": 8},
        "training": {"batch_size": 2, "gradient_accumulation_steps": 4, "dtype": "bf16"},
        "engine": {"type": "deepspeed", "zero_stage": 3},
    }
    assert found["needs_bytes"] == estimate(run).needs_bytes
    assert found["run"]["engine"]["zero_stage"] == 3
    assert "the model is created under zero.Init (engine.zero_init)" in found["assumed"]
    assert not any("num_gpus" in text for text in found["assumed"])


def test_the_report_lists_what_the_file_leaves_open(
    made: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the command that explains the run names the model again."""
    assert main(["calculate", "--config", made(), "--model", "gpt2", "--long", *EIGHT]) == 0
    out = capsys.readouterr().out
    assert "assumed: sequences as long as the model takes (training.seq_len)" in out
    assert "--model gpt2" in out


def test_without_a_model_it_is_asked_for(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence."""
    path = made()
    assert main(["calculate", "--config", path, *EIGHT]) == 2
    assert capsys.readouterr().err == (
        f"gpu-mem-calc: {path} is DeepSpeed's configuration, which names no model; add "
        "--model NAME\n"
    )


def test_plain_numbers_are_a_model_too(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """As --set has them."""
    numbers = [
        "--set",
        "model.num_layers=2",
        "--set",
        "model.hidden_size=128",
        "--set",
        "model.num_attention_heads=4",
    ]
    assert main(["calculate", "-c", made(), *numbers, *EIGHT, "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["num_layers"] == 2


def test_a_path_is_a_model_too(
    made: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config.json beside the file."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    assert main(["calculate", "-c", made(), "--model", str(config), *EIGHT, "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["num_layers"] == 3


def test_a_run_file_names_its_own_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--model is for DeepSpeed's file alone."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"model": {"name": "gpt2"}}))
    for where in (["--config", str(path)], ["--preset", "gpt2"]):
        assert main(["calculate", *where, "--model", "llama2-7b"]) == 2
        err = capsys.readouterr().err
        assert "--model llama2-7b is for DeepSpeed's JSON" in err
        assert "--set model.name=NAME" in err


def test_explain(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Formulas of the same run."""
    assert main(["explain", "-c", made(), "--model", "gpt2", *EIGHT]) == 0
    assert "ZeRO-3" in capsys.readouterr().out


def test_validate_the_file_alone(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a model its own keys and sizes are checked, and it says so."""
    path = made()
    assert main(["validate", path, *EIGHT]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"✓ {path} is valid without its model; to check the model too, add --model NAME\n"
    )
    assert "takes no memory: steps_per_print, optimizer.params.lr" in out
    assert main(["validate", path, "--set", "training.batchsize=1"]) == 2
    assert "did you mean 'batch_size'?" in capsys.readouterr().err


def test_settings_may_put_a_file_right(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine's rules are for the run that comes out."""
    path = made(zero_optimization={"stage": 2, "offload_param": {"device": "cpu"}})
    assert main(["validate", path, *EIGHT]) == 2
    assert "engine.offload_param=cpu needs ZeRO-3" in capsys.readouterr().err
    assert main(["validate", path, *EIGHT, "--set", "engine.zero_stage=3"]) == 0


@pytest.mark.parametrize(
    "cut", ["parallelism.pipeline_parallel_size=8", "parallelism.tensor_parallel_size=8"]
)
def test_a_run_that_is_cut_needs_no_model_to_be_valid(made: Make, cut: str) -> None:
    """Whatever its ranks divide."""
    path = made(zero_optimization={"stage": 1})
    engine = "megatron_deepspeed" if "tensor" in cut else "deepspeed"
    assert main(["validate", path, *EIGHT, "--set", cut, "--set", f"engine.type={engine}"]) == 0


def test_one_rank_of_a_launcher_tells_what_is_assumed(
    made: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not all of them."""
    parser = Parser(prog="gpu-mem-calc measure")
    parser.add("run", {})
    args = parser.parse_args(["--config", made(), "--model", "gpt2", *EIGHT])
    for rank, lines in (("0", 3), ("5", 0)):
        monkeypatch.setenv("RANK", rank)
        assert run_data(args)["hardware"] == {"num_gpus": 8}
        assert len(capsys.readouterr().err.splitlines()) == lines
    assert run_words(args)[2:4] == ["--model", "gpt2"]


def test_validate_the_run(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """With a model the engine's rules are, too."""
    path = made(zero_optimization={"stage": 0, "offload_optimizer": {"device": "cpu"}})
    assert main(["validate", path, "--model", "gpt2", *EIGHT]) == 2
    assert "engine.offload_optimizer=cpu needs ZeRO" in capsys.readouterr().err
    assert main(["validate", made(), "--model", "gpt2", *EIGHT]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("is valid")


def test_every_problem_is_a_line(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them at once."""
    path = made(train_batch_size=65, amp={}, zero_optimization={"stage": 3, "bucket": 1})
    assert main(["validate", path, *EIGHT]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("gpu-mem-calc: ") for line in lines)


def test_a_file_of_the_trainer_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its "auto", comments and last commas."""
    path = tmp_path / "ds_config.json"
    path.write_text(
        '{"train_batch_size": "auto", // of a step\n "train_micro_batch_size_per_gpu": "auto",'
        ' "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2,\n'
        ' "reduce_bucket_size": "auto",},}'
    )
    words = ["--model", "gpt2", "--set", "training.dtype=bf16", "--set", "training.seq_len=64"]
    assert main(["calculate", "-c", str(path), *words, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["run"]["engine"]["reduce_bucket_size"] == 768 * 768
    assert answer["run"]["training"]["batch_size"] == 8
    assert 'reduce_bucket_size="auto" is 589824 (hidden size squared)' in answer["assumed"]
    assert not any("bf16" in one for one in answer["assumed"])


def test_text_after_the_file_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeepSpeed's parser refuses it, too."""
    path = tmp_path / "ds_config.json"
    path.write_text('{\n  "train_batch_size": 64\n},\n')
    assert main(["calculate", "-c", str(path), "--model", "gpt2"]) == 2
    assert "line 3 has a comma after the end; delete it" in capsys.readouterr().err


def test_trace_and_measure_take_it(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """What is assumed is told beside; without a GPU measure gets as far as asking for one."""
    pytest.importorskip("torch")
    small = ["--set", "model.num_layers=1", "--set", "hardware.num_gpus=8"]
    assert main(["measure", "-c", made(), "--model", "gpt2", *small]) == 2
    err = capsys.readouterr().err
    assert "assumed: the model is created under zero.Init (engine.zero_init)" in err
    assert "needs a CUDA GPU" in err


def test_python_is_told_what_to_do(made: Make) -> None:
    """`estimate` takes run files, and says who reads this one."""
    with pytest.raises(InputError, match="DeepSpeed's configuration, which names no model"):
        estimate(made())
