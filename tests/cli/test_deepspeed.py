"""`deepspeed`: DeepSpeed's own table, character for character."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.cli.deepspeed import base_model_counts
from gpu_mem_calculator.estimates.published.zero_tables import zero3_table

from .conftest import Command

LLAMA_70B = """\
Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 8 GPUs per node.
SW: Model with 69503M total params.
  per CPU  |  per GPU |   Options
 3107.03GB | 129.46GB | offload_optimizer=cpu\x20
 3107.03GB | 275.10GB | offload_optimizer=none
"""


@pytest.mark.parametrize("stage", ["1", "2"])
def test_the_chart_s_table(command: Command, stage: str) -> None:
    """Llama-3.1-70B on eight GPUs prints the published table; stage 1 has stage 2's."""
    words = ["deepspeed", "--stage", stage, "--model-path", "meta-llama/Llama-3.1-70B"]
    answer = command(*words, "--nodes", "1", "--gpus-per-node", "8")
    assert (answer.code, answer.out) == (0, LLAMA_70B)
    assert answer.err == (
        "gpu-mem-calc: meta-llama/Llama-3.1-70B, a preset: 69,503,033,344 "
        "parameters without its output head\n"
    )


def test_a_vision_tower_is_counted(command: Command) -> None:
    """DeepSpeed counts all parameters of the module, those for pictures among them."""
    answer = command("deepspeed", "--stage", "2", "--model-path", "qwen2.5-vl-7b")
    assert "Model with 7747M total params" in answer.out
    assert answer.err == (
        "gpu-mem-calc: qwen2.5-vl-7b, a preset: 7,747,169,280 parameters without "
        "its output head, 676,550,144 of them in the vision tower\n"
    )


def test_stage_3_from_numbers(command: Command) -> None:
    """Stage 3 prints what the table function makes of the same numbers."""
    words = ["deepspeed", "--stage", "3", "--num-parameters", "70e9"]
    words += ["--largest-layer-parameters", "1.05e9", "--nodes", "2", "--gpus-per-node", "4"]
    answer = command(*words, "--buffer-factor", "1.25")
    assert answer.out == zero3_table(70 * 10**9, 1_050_000_000, 4, 2, 1.25) + "\n"


def test_stage_3_needs_the_largest_layer(command: Command) -> None:
    """A parameter count alone is not enough for stage 3, and the sentence says what is missing."""
    answer = command("deepspeed", "--stage", "3", "--num-parameters", "70e9")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "needs --largest-layer-parameters" in answer.err


def test_stage_3_of_a_model_knows_its_largest_layer(command: Command) -> None:
    """A model brings its largest layer along."""
    answer = command("deepspeed", "--stage", "3", "--model-path", "llama3.1-70b")
    assert "69503M total params, 1050M largest layer params" in answer.out


def test_a_config_json_and_its_folder_are_models(command: Command, tmp_path: Path) -> None:
    """--model-path takes a config.json and the folder that has it."""
    row = catalog.find("index", "llama2-7b")
    assert row is not None
    source = Path(catalog.FOLDER) / "models" / row["config"]
    (tmp_path / "config.json").write_text(source.read_text())
    preset = command("deepspeed", "--model-path", "llama2-7b").out
    assert command("deepspeed", "--model-path", tmp_path).out == preset
    assert command("deepspeed", "--model-path", tmp_path / "config.json").out == preset


def test_an_untied_head_is_left_out() -> None:
    """The base model of Llama 2 7B is without its 32000 × 4096 output head."""
    assert base_model_counts("llama2-7b", [])[0] == 6_738_415_616 - 32000 * 4096


def test_a_tied_head_counts_once() -> None:
    """GPT-2's output is its embedding: nothing is left out."""
    assert base_model_counts("gpt2", [])[0] == 124_439_808


def test_set_changes_the_model(command: Command) -> None:
    """--set reaches the model that --model-path names."""
    words = ["deepspeed", "--stage", "2", "--model-path", "llama2-7b"]
    assert "SW: Model with 6607M" in command(*words).out
    assert "SW: Model with 6607M" not in command(*words, "--set", "model.num_layers=16").out


def test_a_largest_layer_above_the_total_is_refused(command: Command) -> None:
    """A layer cannot be larger than its model."""
    words = ["--num-parameters", "1e9", "--largest-layer-parameters", "2e9"]
    answer = command("deepspeed", *words)
    assert answer.code == 2
    assert "is more than --num-parameters" in answer.err


def test_other_words_for_the_model_and_the_gpus_are_understood(command: Command) -> None:
    """Those of the other verbs."""
    own = command("deepspeed", "--stage", "2", "--model-path", "gpt2", "--gpus-per-node", "4")
    assert command("deepspeed", "--stage", "2", "--model", "gpt2", "--gpus", "4").out == own.out
