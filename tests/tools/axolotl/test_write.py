"""Run file -> Axolotl's YAML -> run file is the identity on what Axolotl can say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.runfile.text.text_data import parse_text
from gpu_mem_calculator.tools.axolotl.read import read_settings
from gpu_mem_calculator.tools.reading.command import Command
from tests.tools.writing.runs import LLAMA, Data, plain, resolved, run_file, written

from .settings import LEAST, NO_FILES, reading

CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
LIGER = "axolotl.integrations.liger.LigerPlugin"
FILE = st.fixed_dictionaries(
    {
        "micro_batch_size": st.integers(1, 4),
        "gradient_accumulation_steps": st.integers(1, 4),
        "sequence_len": st.sampled_from([32, 64, 128]),
        "pad_to_sequence_len": st.just(False),
    },
    optional={
        "optimizer": st.sampled_from(["adamw_torch", "adamw_bnb_8bit", "adafactor", "lion_8bit"]),
        "max_grad_norm": st.sampled_from([0.0, 0.5]),
        "bf16": st.booleans(),
        "attn_implementation": st.sampled_from(["eager", "sdpa", "flash_attention_2"]),
        "gradient_checkpointing": st.booleans(),
        "gradient_checkpointing_kwargs": st.fixed_dictionaries({"use_reentrant": st.booleans()}),
        "activation_offloading": st.sampled_from([False, "hidden_states"]),
        "val_set_size": st.sampled_from([0.0, 0.1]),
        "evals_per_epoch": st.just(4),
        "torch_compile": st.booleans(),
    },
)
ADAPTER = st.sampled_from(
    [
        {},
        {"adapter": "lora", "lora_target_modules": ["q_proj", "v_proj"]},
        {"adapter": "lora", "lora_target_linear": True, "load_in_8bit": True},
        {"adapter": "qlora", "lora_target_linear": True, "load_in_4bit": True},
        {
            "adapter": "qlora",
            "lora_target_linear": True,
            "load_in_4bit": True,
            "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False},
        },
    ]
)
PLUGINS = st.sampled_from(
    [
        {},
        {"plugins": [CUT]},
        {"plugins": [LIGER], "liger_rope": True, "liger_rms_norm": True},
        {"plugins": [LIGER], "liger_fused_linear_cross_entropy": True},
    ]
)
WRAP = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
LAUNCH = st.sampled_from(
    [
        {},
        {"deepspeed": "deepspeed_configs/zero1.json"},
        {"deepspeed": "deepspeed_configs/zero2.json"},
        {"deepspeed": "deepspeed_configs/zero3_bf16.json"},
        {"fsdp_version": 2, "fsdp_config": WRAP},
        {"fsdp_version": 2, "fsdp_config": {**WRAP, "cpu_ram_efficient_loading": True}},
        {"fsdp_version": 2, "fsdp_config": {**WRAP, "reshard_after_forward": False}},
        {"fsdp_config": {**WRAP, "use_orig_params": True, "sync_module_states": True}},
    ]
)


@given(settings=FILE, adapter=ADAPTER, plugins=PLUGINS, launch=LAUNCH, gpus=st.sampled_from([1, 4]))
def test_the_identity(
    settings: Data, adapter: Data, plugins: Data, launch: Data, gpus: int
) -> None:
    """Whatever an Axolotl file says is written again without a difference."""
    rank = {"lora_r": 8, "lora_dropout": 0.1} if adapter else {}
    try:
        command = Command(words=(), files=NO_FILES, num_gpus=gpus)
        found = read_settings(
            {**LEAST, **settings, **adapter, **rank, **plugins, **launch}, command
        )
        data = {**found.run, "model": {"config": LLAMA}, "hardware": {"num_gpus": gpus}}
        resolved(plain(data))
    except InputError:
        assume(False)
    made = written("axolotl", plain(data))  # it reads the text back, and compares
    assert made.unsaid == ()
    text: Any = parse_text(made.text, ".yaml", "the text")
    assert not reading(**text).problems


def test_a_file_can_be_started() -> None:
    """It has what Axolotl's validation asks for, and fused kernels are off."""
    made = written("axolotl", run_file(gpus=4, precision="bf16_pure", autocast=True, lora={"r": 8}))
    data: Any = parse_text(made.text, ".yaml", "the text")
    assert set(LEAST) <= set(data)
    assert data["lora_target_modules"] == ["q_proj", "v_proj"]
    assert data["lora_mlp_kernel"] is False
    assert made.start == "axolotl train axolotl.yaml -- --num_processes 4"


def test_what_axolotl_cannot_say_is_a_comment() -> None:
    """Its bf16 has weights in bf16."""
    made = written("axolotl", run_file(precision="bf16_mixed"))
    assert "training.precision='bf16_mixed': Axolotl has 'bf16_pure'" in made.unsaid
    assert "#   training.precision=" in made.text


@pytest.mark.parametrize("training", [{"reference_model": True, "loss": "chunked"}])
def test_what_is_not_written(training: Data) -> None:
    """A sentence names it."""
    with pytest.raises(InputError, match="a reference model; only SFT"):
        written("axolotl", run_file(**training))
