"""Megatron's options with their defaults, and the setting of one rank's layers under them."""

from __future__ import annotations

from typing import Any

from ...cuda.libraries import has_experts
from ...modelling.megatron.ops import MegatronSetting
from ...run.run import Run

LOCAL, ENGINE = "local", "transformer_engine"

# Megatron-LM's defaults (branch core_r0.19.0, megatron/training/arguments.py): its script pads the
# vocabulary to a multiple of 128 × tp (--make-vocab-size-divisible-by, vocab_utils.py:58) and has
# no switch for stage outputs, which it deallocates (core_transformer_config_from_args).
OPTIONS: dict[str, Any] = {
    "distributed_optimizer": False,
    "transformer_implementation": ENGINE,
    "masked_softmax_fusion": True,
    "gradient_accumulation_fusion": True,
    "attention_softmax_in_fp32": True,
    "accumulate_allreduce_grads_in_fp32": None,  # None: on for bf16, off for fp16
    "make_vocab_size_divisible_by": 128,
    "deallocate_pipeline_outputs": True,
}
# Defaults of megatron-core's own API: GPTModel takes the vocabulary as it is, and
# ModelParallelConfig keeps stage outputs (model_parallel_config.py:405).
LIBRARY: dict[str, Any] = {"make_vocab_size_divisible_by": 1, "deallocate_pipeline_outputs": False}


def option(run: Run, name: str) -> Any:
    """An option's value, or its default."""
    value = run.options.get(name)
    return OPTIONS[name] if value is None else value


def fused(run: Run) -> bool:
    """Whether layers are Transformer Engine's."""
    return bool(option(run, "transformer_implementation") == ENGINE)


def bits(run: Run) -> int:
    """Bits of weights and activations."""
    return 32 if run.precision == "fp32" else 16


def gradient_bits(run: Run) -> int:
    """Bits of the main-gradient buffer.

    bf16 accumulates in fp32 by default (arguments.py:1186-1193), fp16 in fp16.
    """
    wide = option(run, "accumulate_allreduce_grads_in_fp32")
    wide = run.precision == "bf16_mixed" if wide is None else wide
    return 32 if wide else bits(run)


def fused_weight_gradients(run: Run) -> bool:
    """Whether weight-gradient kernels add to the main gradients directly."""
    return fused(run) and bool(option(run, "gradient_accumulation_fusion"))


def shares_gradient(run: Run) -> bool:
    """Whether a stage with embedding and output layer sums their gradients of a shared table."""
    return run.arch.tied and not fused_weight_gradients(run)


def setting(run: Run, *, selective: bool) -> MegatronSetting:
    """The sizes and choices of kernels with which one rank runs its layers."""
    engine = fused(run)
    return MegatronSetting(
        batch=run.batch,
        seq=run.seq,
        hidden=run.arch.hidden,
        tp=run.mesh.tp,
        cp=run.mesh.cp,
        ep=run.mesh.ep,
        bits=bits(run),
        sequence_parallel=run.sequence_parallel,
        transformer_engine=engine,
        fused_softmax=option(run, "masked_softmax_fusion"),
        float_softmax=option(run, "attention_softmax_in_fp32"),
        fused_weight_gradients=fused_weight_gradients(run),
        selective=selective,
    )


def expert_streams(run: Run) -> bool:
    """Whether Megatron-Core makes a CUDA stream: it copies the experts' counts to the host on one.

    megatron-core 0.19.2 transformer/moe/token_dispatcher.py:469.
    """
    return has_experts(run)
