"""The arguments of Megatron-LM's pretrain_gpt.py as a program."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.program_section import with_program

BATCH = {"micro_batch_size": 1, "seq_length": 512, "bf16": True}
GPT = {
    **BATCH,
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 50257,
    "max_position_embeddings": 512,
}
LLAMA = {"name": "llama3.2-1b"}


def run(args: dict[str, Any], model: Any = None, gpus: int = 8) -> dict[str, Any]:
    """A run file of the script."""
    made: dict[str, Any] = {"program": {"tool": "megatron", "args": args}}
    made |= {"hardware": {"gpu": "h200", "num_gpus": gpus}}
    return made if model is None else made | {"model": model}


def keys(args: dict[str, Any], model: Any = LLAMA) -> dict[str, Any]:
    """The sections that a program means."""
    return with_program(run(args, model), {})[0]


def test_a_run_is_that_of_the_engine() -> None:
    """The script's defaults are the engine's."""
    own = {
        "model": LLAMA,
        "training": {"batch_size": 1, "seq_len": 512, "precision": "bf16_mixed"},
        "engine": {"type": "megatron_lm"},
        "hardware": {"gpu": "h200", "num_gpus": 8},
    }
    assert estimate(run(BATCH, LLAMA)).allocated_bytes == estimate(own).allocated_bytes


def test_the_arguments_describe_the_model() -> None:
    """With the script's defaults: GELU of four widths, layer norms, learned positions, dropout."""
    arch = full_estimate(run(GPT)).resolved.run.arch
    layer = 12 * 512**2 + 13 * 512  # Narayanan et al. 2021, formula of GPT's layers
    assert arch.num_parameters == 8 * layer + 50257 * 512 + 512 * 512 + 2 * 512
    gated = {**GPT, "swiglu": True, "normalization": "RMSNorm", "num_experts": 4}
    gated |= {"moe_grouped_gemm": True, "use_rotary_position_embeddings": True}
    gated |= {"group_query_attention": True, "num_query_groups": 2, "add_bias_linear": False}
    found = full_estimate(run(gated)).resolved.run.arch.layers[0]
    assert (found.mixer.kv_heads, found.mlp.num_experts, found.mlp.top_k) == (2, 4, 2)
    assert found.mlp.ffn == 1344  # int(8 x 512 / 3 / 64) x 64


def test_groups_and_micro_batches() -> None:
    """Ranks that are left are data-parallel; chunks of a stage are counted."""
    args = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    args |= {"global_batch_size": 16, "num_layers_per_virtual_pipeline_stage": 4}
    made = keys({**BATCH, **args, "sequence_parallel": True})
    assert made["training"]["gradient_accumulation_steps"] == 8
    assert made["parallelism"] == {
        "data_parallel_size": 2,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "context_parallel_size": 1,
        "expert_parallel_size": 1,
        "virtual_pipeline_size": 2,
        "sequence_parallel": True,
    }


@pytest.mark.parametrize(
    ("args", "section", "expected"),
    [
        ({"use_distributed_optimizer": True}, "engine", {"distributed_optimizer": True}),
        ({"masked_softmax_fusion": False}, "engine", {"masked_softmax_fusion": False}),
        ({"transformer_impl": "local"}, "engine", {"transformer_implementation": "local"}),
        ({"grad_reduce_in_bf16": True}, "engine", {"accumulate_allreduce_grads_in_fp32": False}),
        (
            {"recompute_activations": True},
            "training",
            {"recompute": {"recompute_granularity": "selective"}},
        ),
        ({"cross_entropy_loss_fusion": True}, "training", {"loss": "megatron_fused"}),
        ({"optimizer": "sgd"}, "training", {"optimizer": "sgd_momentum"}),
        ({"clip_grad": 0.0}, "training", {"gradient_clipping": 0.0}),
    ],
)
def test_arguments_are_keys(args: dict[str, Any], section: str, expected: dict[str, Any]) -> None:
    """Under their own names, or the nearest."""
    assert expected.items() <= keys({**BATCH, **args})[section].items()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"fp8": "hybrid"}, "8-bit and 4-bit formats are not modelled"),
        ({"num_layers": 24}, "means model.num_layers=24, and the model section has 16"),
        ({"untie_embeddings_and_output_weights": True}, "tie_word_embeddings=false"),
        ({"optimizer": "muon"}, "is not modelled; use 'adam'"),
        (
            {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "triton"},
            "cross_entropy_fusion_impl='triton' is not modelled; use 'native' or 'te'",
        ),
        ({"tensor_model_parallel_size": 3}, "do not divide 8 GPUs"),
        ({"global_batch_size": 12}, "must be a multiple of"),
        ({"use_megatron_fsdp": True}, "FSDP is not modelled under Megatron-LM"),
        ({"fp16": True}, "bf16 and fp16 are both there"),
        ({"seq_len": 5}, "did you mean 'seq_length'"),
    ],
)
def test_what_is_not_modelled_is_refused(args: dict[str, Any], sentence: str) -> None:
    """One sentence, with the way out."""
    with pytest.raises(InputError, match=sentence):
        estimate(run({**BATCH, **args}, LLAMA))


def test_what_the_script_needs_is_named() -> None:
    """Without a model section, its shape too."""
    with pytest.raises(InputError, match=r"program\.args\.num_layers is missing"):
        estimate(run(BATCH))
    experts = {**GPT, "num_experts": 4}
    with pytest.raises(InputError, match="moe_grouped_gemm=false"):
        estimate(run(experts))


@pytest.mark.parametrize("tool", ["verl", "openrlhf", "unsloth"])
def test_tools_that_cannot_be_answered_say_which_can(tool: str) -> None:
    """A sentence, not a guess."""
    made = {"model": LLAMA, "program": {"tool": tool}, "hardware": {"gpu": "h200"}}
    with pytest.raises(InputError, match=r"is not modelled: .*use trl\."):
        estimate(made)


def test_what_is_not_counted_is_said() -> None:
    """The mask that the script copies, and what a router's loss keeps."""
    args = {**GPT, "num_experts": 4, "moe_grouped_gemm": True, "moe_aux_loss_coeff": 0.01}
    warnings = " ".join(estimate(run(args)).warnings)
    assert "create_attention_mask_in_dataloader" in warnings
    assert "auxiliary loss" in warnings
    quiet = {**GPT, "create_attention_mask_in_dataloader": False}
    assert "mask" not in " ".join(estimate(run(quiet)).warnings)
