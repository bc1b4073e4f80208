"""Files that are not run files are recognised by their keys."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.runfile.file_kinds import as_run_file, is_model_config
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
# Files of other programs, what they are called, and the command that is suggested.
OTHERS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"model_name_or_path": "gpt2", "per_device_train_batch_size": 2, "bf16": True},
        "TRL or of the transformers Trainer",
        "quick gpt2 --set training.batch_size=2 --set training.dtype=bf16",
    ),
    (
        {
            "base_model": "gpt2",
            "adapter": "lora",
            "lora_r": 16,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "optimizer": "adamw_bnb_8bit",
            "datasets": [{"path": "x"}],
        },
        "an Axolotl configuration",
        "quick gpt2 --set training.lora.r=16 --set training.batch_size=2 "
        "--set training.gradient_accumulation_steps=4 --set training.optimizer=adamw_8bit",
    ),
    (
        {"distributed_type": "FSDP", "num_processes": 8, "mixed_precision": "bf16"},
        "accelerate's configuration",
        "quick MODEL --set engine.type=fsdp --set hardware.num_gpus=8",
    ),
    (
        {"peft_type": "LORA", "base_model_name_or_path": "gpt2", "lora_alpha": 32},
        "a PEFT adapter's configuration",
        "quick gpt2",
    ),
    ({"weight_map": {"a": "b"}}, "an index of safetensors files", "quick MODEL"),
    (
        {"tokenizer": {"_component_": "x"}, "model": {"_component_": "y"}},
        "a torchtune configuration",
        "quick MODEL",
    ),
]


def test_a_bare_config_is_the_model_of_a_run() -> None:
    """The rest of the run has its defaults."""
    assert is_model_config(LLAMA)
    assert read(LLAMA).file.model.config == LLAMA


@pytest.mark.parametrize(("data", "words", "command"), OTHERS)
def test_other_programs_are_named_with_a_command(
    data: dict[str, Any], words: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and the command works when it is pasted with a model's name."""
    with pytest.raises(InputError) as caught:
        as_run_file(data, "file.yaml")
    (problem,) = caught.value.problems
    assert problem == (
        f"file.yaml is {words}, which is not read; try gpu-mem-calc {command}"
        if words.startswith(("a", "an "))
        else f"file.yaml is a configuration of {words}, which is not read; "
        f"try gpu-mem-calc {command}"
    )
    assert main([*shlex.split(command.replace("MODEL", "gpt2")), "--format", "json"]) == 0
    assert capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize(
    "data",
    [
        {"model": {"name": "gpt2"}, "per_device_train_batch_size": 2},
        {"zero_optimization": {"stage": 3}, "train_batch_size": 8, "output_dir": "x"},
        {"model": {"name": "gpt2"}, "training": {}},
        [],
        None,
    ],
)
def test_other_data_stays(data: Any) -> None:
    """Run files with other people's names, and DeepSpeed's files."""
    assert as_run_file(data) == data


@pytest.mark.parametrize(
    "data",
    [
        {"model": {"name": "gpt2"}, "training": {"batch_size": True, "lora": [1, None]}},
        {"model": {"name": "gpt2"}, "engine": {"type": "fsdp", "amp": True}},
        {"model": {"config": {**LLAMA, "hidden_size": True, "attention_bias": None}}},
        {"model": {"config": {**LLAMA, "attention_bias": {"x": False}}}},
        {"model": {"name": "gpt2"}, "inference": {"engine": "vllm", "flash_attn": True}},
        {"model": {"name": "gpt2"}, "inference": {"engine": "transformers", "max_num_seqs": True}},
        {"model": True},
        {"model": {"name": None, "num_layers": False}},
    ],
)
def test_values_are_quoted_as_in_the_file(data: dict[str, Any]) -> None:
    """Not as Python writes them."""
    from gpu_mem_calculator import estimate

    with pytest.raises(InputError) as caught:
        estimate(data)
    for word in ("True", "False", "None", "datetime"):
        assert word not in str(caught.value)


def test_many_problems_end_in_a_sentence() -> None:
    """Not in as many sentences as a file has keys."""
    with pytest.raises(InputError) as caught:
        read({f"key{i}": 1 for i in range(500)}).checked()
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "there are more problems; correct these first"
