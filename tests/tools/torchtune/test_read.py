"""torchtune's commands and files as run files."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.torchtune.read import FOLDER, REFUSED
from gpu_mem_calculator.tools.translation.arguments import argument_data
from tests.corpus import sampled
from tests.tools.reading_of import readings_of

FILE = """
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: False
  lora_rank: 64
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 2048
checkpointer:
  model_type: LLAMA3_2
batch_size: 3
optimizer:
  _component_: torch.optim.AdamW
  fused: True
enable_activation_checkpointing: True
dtype: bf16
"""
LORA = "tune run lora_finetune_single_device --config llama3_1/8B_lora_single_device"


def _read(line: str, folder: Path | None = None) -> Reading:
    [found] = readings_of(shlex.split(line), folder)
    return found


def test_a_configuration_by_its_name() -> None:
    """LoRA of torchtune's own file, on one card, with what the command changes."""
    found = _read(f"{LORA} tokenizer.max_seq_len=4096 batch_size=1 model.lora_rank=16")
    assert found.run["model"] == {"name": "llama3.1-8b"}
    assert found.run["engine"] == {"type": "pytorch_ddp"}
    assert found.run["training"] == {
        "batch_size": 1,
        "gradient_accumulation_steps": 8,
        "precision": "bf16_pure",
        "optimizer": "adamw",
        "optimizer_implementation": "fused",
        "gradient_clipping": 0,
        "activation_checkpointing": "full",
        "checkpoint_reentrant": False,
        "seq_len": 4096,
        "lora": {
            "r": 16,
            "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            "adapter_dtype": "bf16",
        },
    }


def test_several_devices_are_fsdp() -> None:
    """As many as torchrun's options in front of the recipe say."""
    line = "tune run --nnodes 2 --nproc_per_node 8 full_finetune_distributed"
    found = _read(f"{line} --config llama3_3/70B_full_multinode tokenizer.max_seq_len=8192")
    assert found.run["hardware"] == {"num_gpus": 16, "num_nodes": 2}
    assert found.run["engine"]["type"] == "fsdp"
    assert "lora" not in found.run["training"]


def test_a_file_alone_and_in_a_command(tmp_path: Path) -> None:
    """The same run; a key that no recipe reads is named and has no effect."""
    (tmp_path / "my.yaml").write_text(FILE)
    alone = _read("my.yaml", tmp_path)
    line = "tune run lora_finetune_single_device --config my.yaml my_own=3"
    started = _read(line, tmp_path)
    assert alone.run["training"] == started.run["training"]
    assert started.run["training"]["lora"]["r"] == 64
    assert "my_own is read by no recipe of torchtune; it has no effect" in started.assumed


def test_another_optimizer_leaves_torchs_kernel_out() -> None:
    """bitsandbytes has one of its own; `~key` takes a key away."""
    found = _read(f"{LORA} optimizer=bitsandbytes.optim.PagedAdamW8bit")
    assert found.run["training"]["optimizer"] == "paged_adamw_8bit"
    assert "optimizer_implementation" not in found.run["training"]
    assert "optimizer_implementation" not in _read(f"{LORA} ~optimizer.fused").run["training"]


def test_what_is_not_modelled_is_a_limit() -> None:
    """Each with its direction."""
    found = _read(f"{LORA} enable_activation_offloading=True compile=True")
    could = {one.key: one.could for one in found.limits}
    assert could["enable_activation_offloading=true"] == "less"
    assert could["compile=true"] == "either"
    assert could["tokenizer.max_seq_len=null"] == "either"


@pytest.mark.parametrize("part", REFUSED)
def test_a_recipe_that_is_not_modelled_is_refused(part: str) -> None:
    """With what is."""
    with pytest.raises(InputError, match=f"tune run {part}_recipe: "):
        _read(f"tune run {part}_recipe --config llama3_1/8B_lora_single_device")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("tune download x", "only tune run is read"),
        ("tune run", "names no recipe"),
        ("tune run full_finetune_single_device", "needs --config"),
        ("tune run x --config llama3_1/8B_ful", "did you mean 'llama3_1/8B_full'"),
        (f"{LORA} batch_size", "must be a pair key=value"),
        (f"{LORA} dtype=fp8", "dtype='fp8' must be one of bf16"),
        (f"{LORA} optimizer=torchao.optim.X", "optimizer='X' is not modelled"),
    ],
)
def test_a_mistake_gets_a_sentence(line: str, part: str) -> None:
    """The value and the nearest fix."""
    with pytest.raises(InputError, match=part):
        _read(line)


@pytest.mark.parametrize(("name", "row"), sampled([*argument_data("configs", FOLDER).items()], 12))
def test_each_configuration_of_torchtune_is_estimated(name: str, row: dict[str, Any]) -> None:
    """All but those of recipes that are refused, and of models with pictures."""
    if any(
        part in f"{name} {row.get('loss', '')}".lower()
        for part in (*REFUSED, "kd", "11b_", "vision")
    ):
        return
    found = _read(f"tune run recipe --config {name} tokenizer.max_seq_len=512")
    assert found.problems == []
    run = {**found.run_file, "hardware": {"gpu": "h200", "num_gpus": 1}}
    assert full_estimate(run).result.allocated_bytes > 0
