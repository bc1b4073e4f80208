"""What Axolotl's settings mean, by the functions that the reader cites."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.axolotl.launch import shipped_configs
from gpu_mem_calculator.tools.axolotl.read import read_data

from .settings import LEAST, LORA, NO_FILES, QLORA, Data, limits, program, reading

ACCUMULATION = "gradient_accumulation_steps"
FLASH: Data = {"attn_implementation": "flash_attention_2"}
PACKED: Data = {"sample_packing": True}
LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
FSDP2: Data = {
    "fsdp_version": 2,
    "fsdp_config": {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "cpu_ram_efficient_loading": True,
        "reshard_after_forward": True,
    },
}
FSDP1: Data = {
    "fsdp": ["full_shard", "auto_wrap"],
    "fsdp_config": {"fsdp_limit_all_gathers": True, "fsdp_use_orig_params": True},
}


@pytest.mark.parametrize(
    ("changed", "rows", "tokens"),
    [
        ({}, 2, 2048),
        ({"sequence_len": 2000}, 2, 2048),  # padded to a multiple of 64
        ({"sequence_len": 2000, "pad_to_sequence_len": False}, 2, 2000),
        ({**PACKED, **FLASH}, 1, 4096),  # one row of both
        ({**PACKED, **FLASH, "sequence_len": 8096}, 1, 16256),  # a multiple of 8128
        ({**PACKED, **FLASH, "multipack_real_batches": True}, 2, 2048),
        ({**PACKED, "attn_implementation": "sdpa"}, 2, 2048),
        (PACKED, 2, 2048),
        ({"flash_attention": True, **PACKED}, 1, 4096),
        ({**FLASH, "batch_flattening": "auto"}, 1, 4096),
        ({**PACKED, **FLASH, "pretraining_dataset": [{"path": "c4"}], "max_steps": 9}, 1, 4096),
    ],
)
def test_rows_of_a_batch(changed: Data, rows: int, tokens: int) -> None:
    """Packing, padding and flattening."""
    found = program(**changed)
    assert found["args"]["per_device_train_batch_size"] == rows
    assert found["data"]["seq_len"] == tokens


@pytest.mark.parametrize(
    ("changed", "dtype", "bf16", "fp16"),
    [
        ({}, "bfloat16", True, False),
        ({"bf16": False}, "float32", False, False),
        ({"bf16": None, "fp16": True}, "float16", False, True),
        ({"bf16": "auto", "fp16": True}, "float16", False, True),
        ({"bf16": False, "float16": True}, "float16", False, False),
        ({"bf16": False, "bfloat16": "yes"}, "bfloat16", True, False),
    ],
)
def test_precision(changed: Data, dtype: str, bf16: bool, fp16: bool) -> None:
    """bf16 is the dtype of the weights, too (resolve_dtype)."""
    found = program(**changed)
    assert (found["load"]["dtype"], found["args"]["bf16"], found["args"]["fp16"]) == (
        dtype,
        bf16,
        fp16,
    )


@pytest.mark.parametrize(
    ("changed", "reentrant"),
    [
        ({}, True),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": False}}, False),
        ({"rl": "dpo"}, False),
        ({"unfrozen_parameters": ["lm_head"]}, False),
        ({"base_model": "google/gemma-4-31B"}, False),
    ],
)
def test_checkpointing_is_reentrant_by_default(changed: Data, reentrant: bool) -> None:
    """normalize_config sets it where the file does not."""
    found = program(gradient_checkpointing=True, **changed)
    assert found["args"]["gradient_checkpointing_kwargs"] == {"use_reentrant": reentrant}


@pytest.mark.parametrize(("steps", "expected"), [({}, 1), ({ACCUMULATION: None}, 4)])
def test_accumulation(steps: Data, expected: int) -> None:
    """batch_size counts only where the steps are null, because their default is 1."""
    least = {key: value for key, value in LEAST.items() if key != ACCUMULATION}
    run = read_data({**least, "batch_size": 8, **steps}, NO_FILES).run
    assert run["program"]["args"][ACCUMULATION] == expected


def test_offloads_and_selective_checkpointing() -> None:
    """Without adapters, the inputs of layers wait on the host."""
    for key in ({"gradient_checkpointing": "offload"}, {"activation_offloading": "legacy"}):
        found = reading(**{"gradient_checkpointing": True, **key})
        assert found.run["training"] == {"recompute": "full_offloaded"}
        assert not found.run["program"]["args"]["gradient_checkpointing"]
    lora = limits(gradient_checkpointing="offload", lora_mlp_kernel=False, **LORA)
    assert lora == {"activation_offloading": "either"}
    kept = reading(gradient_checkpointing=True, selective_checkpointing=True)
    assert kept.run["training"] == {"recompute": "attention_kept"}


def test_qlora() -> None:
    """Norms, embedding and head are upcast and cast back at start-up; the kernels are a limit."""
    found = reading(**QLORA, lora_dropout=0.05)
    section = found.run["program"]
    assert section["peft"] == {
        "r": 16,
        "lora_alpha": 8,
        "target_modules": "all-linear",
        "lora_dropout": 0.05,
    }
    assert section["quantization"]["bnb_4bit_compute_dtype"] == "bfloat16"
    assert section["quantization"]["bnb_4bit_use_double_quant"]
    assert found.run["training"] == {"upcast_unquantized": False, "upcast_at_startup": True}
    assert limits(**QLORA) == {"lora_mlp_kernel": "less"}


@pytest.mark.parametrize(
    "changed",
    [
        {"lora_mlp_kernel": False, "lora_qkv_kernel": False},
        {"trust_remote_code": True},
        {"load_in_8bit": True},
        {"rl": "dpo"},
        FSDP1,
    ],
)
def test_where_the_fused_kernels_are_off(changed: Data) -> None:
    """check_auto_enable_lora_kernels."""
    assert "lora_mlp_kernel" not in limits(**{**LORA, **changed})


def test_lora_with_load_in_4bit_is_not_quantized() -> None:
    """_set_quantization_config asks for qlora and load_in_4bit."""
    assert "quantization" not in program(**LORA, load_in_4bit=True)
    assert program(**LORA, load_in_8bit=True)["quantization"] == {"load_in_8bit": True}


def test_liger_kernels_by_their_keys() -> None:
    """Each is on or off; the plugin passes all of them."""
    found = program(plugins=[LIGER_PLUGIN], liger_rope=True, liger_glu_activation=True)["args"]
    on = [name for name, value in found["liger_kernel_config"].items() if value]
    assert found["use_liger_kernel"]
    assert on == ["rope", "swiglu", "geglu"]


@pytest.mark.parametrize(
    ("changed", "evaluates"),
    [
        ({"val_set_size": 0.1, "evals_per_epoch": 4}, True),
        ({"val_set_size": 0.1, "evals_per_epoch": 1}, False),  # its step is the whole epoch
        ({"val_set_size": 0.1, "evals_per_epoch": 1, "num_epochs": 2}, True),
        ({"val_set_size": 0.0, "evals_per_epoch": 4}, False),
        ({"test_datasets": [{"path": "x"}], "eval_strategy": "epoch"}, True),
        ({"val_set_size": 0.1, "eval_strategy": "no"}, False),
    ],
)
def test_evaluation(changed: Data, evaluates: bool) -> None:
    """_configure_save_and_eval_strategy and normalize_config."""
    assert ("eval_strategy" in program(**changed)["args"]) is evaluates


def test_fsdp2_is_axolotls_own() -> None:
    """fsdp2_prepare_model: weights in their dtype; embedding and head in the root unit."""
    run = reading(**FSDP2).run
    assert run["training"] == {"precision": "bf16_pure", "autocast": False}
    assert run["engine"] == {
        "wrap_embedding_and_head": False,
        "reshard_root_after_forward": True,
        "init_device": "meta",
    }
    assert run["program"]["fsdp_config"] == {"version": 2, "reshard_after_forward": True}


def test_fsdp1_is_the_default() -> None:
    """A prefix of keys is removed, and keys outside the schema are dropped."""
    found = reading(**FSDP1)
    assert found.run["program"]["fsdp_config"] == {"version": 1, "use_orig_params": True}
    assert found.keys["fsdp_config.limit_all_gathers"] == "free"
    assert "fsdp_version=1, Axolotl's default" in found.assumed


def test_the_shipped_deepspeed_files() -> None:
    """They are known without Axolotl's folder; other files are not."""
    found = program(deepspeed="deepspeed_configs/zero3_bf16.json")["deepspeed"]
    assert found["zero_optimization"]["stage3_max_live_parameters"] == 0
    assert found["zero_optimization"]["sub_group_size"] == 1  # 0 is one group a parameter, too
    assert len(shipped_configs()) == 8
    with pytest.raises(InputError, match="no files are opened here"):
        reading(deepspeed="my/zero2.json")


@pytest.mark.parametrize(
    ("changed", "tool"),
    [
        ({}, "transformers.Trainer"),
        ({"rl": "dpo"}, "trl.DPOTrainer"),
        ({"rl": "ipo"}, "trl.DPOTrainer"),
        ({"rl": "kto"}, "trl.KTOTrainer"),
        ({"reward_model": True}, "trl.RewardTrainer"),
        ({"rl": "grpo", "trl": {"num_generations": 4}}, "trl.GRPOTrainer"),
    ],
)
def test_the_trainer(changed: Data, tool: str) -> None:
    """core/builders."""
    assert program(**changed)["tool"] == tool


def test_grpo() -> None:
    """The section `trl`, and vLLM's share of the card."""
    section = {
        "max_completion_length": 256,
        "num_generations": 4,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "beta": 0.1,
    }
    found = program(rl="grpo", trl=section, vllm={"gpu_memory_utilization": 0.4})
    args = found["args"]
    assert found["data"] == {"prompt": 2048 - 256}
    assert (args["vllm_gpu_memory_utilization"], args["beta"]) == (0.4, 0.1)
    elsewhere = program(rl="grpo", trl={**section, "vllm_mode": None})["args"]
    assert elsewhere["vllm_mode"] == "server"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"optimizer": "adamw_torch_8bit"}, {"optimizer": "less"}),
        ({"optimizer": "muon"}, {"optimizer": "either"}),
        ({"optimizer": "lomo"}, {"optimizer": "either"}),
        ({"context_parallel_size": 2, **FLASH}, {"context_parallel_size": "less"}),
        ({"tensor_parallel_size": 2}, {"tensor_parallel_size": "less"}),
        ({"attn_implementation": "xformers"}, {"attn_implementation": "either"}),
        ({"rl": "orpo"}, {"rl": "more"}),
        ({"processor_type": "AutoProcessor"}, {"processor_type": "more"}),
        (
            {"model_config": {"output_router_logits": True}},
            {"model_config.output_router_logits": "more"},
        ),
        ({"torch_compile": True, **FLASH}, {"torch_compile": "either"}),
        ({"attn_implementation": "sdpa"}, {"attn_implementation": "more"}),  # embedding in fp32
        ({"attn_implementation": "sdpa", "bf16": False}, {}),
        ({"torch_compile": True, "attn_implementation": "sdpa", "bf16": False}, {}),
        ({"unfrozen_parameters": ["model.layers.[0-3]."]}, {"unfrozen_parameters": "less"}),
        (
            {**LORA, "rl": "orpo", "unfrozen_parameters": ["^model.language_model.*"]},
            {"rl": "more", "unfrozen_parameters": "less"},
        ),
        (
            {**LORA, "rl": "orpo", "unfrozen_parameters": [".*lm_head"]},
            {"rl": "more", "unfrozen_parameters": "either"},
        ),
        ({"plugins": ["my.Plugin"]}, {"plugins": "either"}),
        ({"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}, {"plugins": "less"}),
    ],
)
def test_limits(changed: Data, expected: dict[str, str]) -> None:
    """What is not modelled is named, with how the run could differ."""
    assert limits(**changed) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"base_model": None},
        {"micro_batch_size": "many"},
        {"micro_batch_size": float("inf")},
        {"sequence_len": -1},
        {"sample_packing": "perhaps"},
        {"adapter": "qlora", "lora_r": 8},
        {"adapter": "lora", "lora_target_linear": True},
        {"adapter": "lora", "lora_r": 8},
        {"load_in_4bit": True},
        {"rl": "dop"},
        {"fsdp_config": [1]},
        {"fsdp_config": {}, "fsdp_version": 3},
        {"plugins": "axolotl.integrations.liger.LigerPlugin"},
        {"trl": 3, "rl": "grpo"},
        {"lora_target_modules": {"a": 1}, "adapter": "lora", "lora_r": 8},
    ],
)
def test_a_wrong_value_is_a_sentence(changed: dict[str, Any]) -> None:
    """Not a traceback."""
    with pytest.raises(InputError) as caught:
        reading(**changed)
    assert len(caught.value.problems) == 1


def test_where_weights_are_loaded() -> None:
    """One rank on the host; several, and packed weights, on the GPU, with an upcast and back."""
    one = reading(**LORA, **FLASH).run
    assert "device_map" not in one["program"]["load"]
    assert "training" not in one
    several = reading(**LORA, **FLASH, use_ray=True, ray_num_workers=4).run
    assert several["program"]["load"]["device_map"] == "cuda"
    assert several["training"] == {"upcast_at_startup": True}
    assert "training" not in reading(**LORA, **FLASH, deepspeed="deepspeed_configs/zero1.json").run


def test_the_optimizer_of_deepspeeds_file_is_that_of_the_run() -> None:
    """It takes the place of Axolotl's, in 8 bits or not; on the host it has no implementation."""
    adam = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}
    zero: Data = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    found = reading(optimizer="adamw_bnb_8bit", deepspeed={**zero, "optimizer": adam})
    assert found.run["training"] == {"optimizer": "adamw", "optimizer_implementation": None}
    assert found.run["program"]["args"]["optim"] == "adamw_torch"
    assert "optimizer" not in found.run["program"]["deepspeed"]
