"""litgpt's commands as run files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.tools.reading_of import reading_of

LORA = "litgpt finetune_lora meta-llama/Llama-3.2-1B --train.max_seq_length 512"


def test_adapters_on_one_device() -> None:
    """Query and value are trained, in the dtype of all weights."""
    found = reading_of(f"{LORA} --train.micro_batch_size 4 --lora_mlp true")
    assert found.run["model"] == {"name": "llama3.2-1b"}
    training = found.run["training"]
    assert training["precision"] == "bf16_pure"
    assert training["gradient_accumulation_steps"] == 4
    modules = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
    assert training["lora"]["target_modules"] == modules
    assert training["lora"]["adapter_dtype"] == "bf16"
    assert found.run["engine"] == {"type": "pytorch_ddp"}
    run = {**found.run_file, "hardware": {"gpu": "a100", "num_gpus": 1}}
    assert full_estimate(run).result.allocated_bytes > 0


def test_several_devices_are_fsdp_with_checkpoints() -> None:
    """Pre-training has none, and shards within a node."""
    found = reading_of(f"{LORA} --devices 4 --num_nodes 2".replace("lora", "full"))
    assert found.run["hardware"] == {"num_gpus": 8}
    assert found.run["training"]["activation_checkpointing"] == "full"
    assert "lora" not in found.run["training"]
    found = reading_of("litgpt pretrain Llama-3.2-1B --devices 8 --train.micro_batch_size 2")
    assert found.run["engine"]["sharding_strategy"] == "hybrid_shard"
    assert found.run["training"]["gradient_accumulation_steps"] == 32
    assert "activation_checkpointing" not in found.run["training"]


def test_a_packed_base_and_a_file(tmp_path: Path) -> None:
    """Options win over the file of --config; nf4 is trained by bitsandbytes' AdamW."""
    text = "quantize: bnb.nf4-dq\nlora_r: 32\ntrain:\n  max_seq_length: 256\n"
    (tmp_path / "own.yaml").write_text(text)
    found = reading_of(f"{LORA} --config own.yaml --lora_r 4", tmp_path)
    training = found.run["training"]
    assert (training["quantization"], training["double_quant"]) == ("nf4", True)
    assert training["optimizer"] == "paged_adamw"
    assert training["lora"]["r"] == 4
    assert training["seq_len"] == 512


def test_what_is_not_modelled_is_a_limit() -> None:
    """Each with its direction."""
    line = "litgpt finetune checkpoints/Qwen/Qwen2.5-0.5B --quantize bnb.int8-training"
    found = reading_of(f"{line} --lora_head true")
    could = {one.key: one.could for one in found.limits}
    assert could["--quantize=bnb.int8-training"] == "less"
    assert could["lora_head=true"] == "more"
    assert could["train.max_seq_length=null"] == "either"
    assert found.run["model"] == {"name": "qwen2.5-0.5b"}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("litgpt chat x", "litgpt chat is not read"),
        ("litgpt finetune_lora", "names no model"),
        (f"{LORA} --precision fp8", "--precision 'fp8' must be one of bf16-true"),
    ],
)
def test_a_mistake_gets_a_sentence(line: str, part: str) -> None:
    """The value and what it can be."""
    with pytest.raises(InputError, match=part):
        reading_of(line)
