"""Megatron's options with their defaults, and the setting of one rank's layers under them."""

from __future__ import annotations

from typing import Any

from ....ledger.frameworks import TRANSFORMER_ENGINE
from ....ledger.num import Num
from ....pytorch.modelling.megatron.ops import MegatronSetting
from ....pytorch.modelling.others.implementations import NANOTRON
from ....run.cuda.libraries import has_experts
from ....run.releases import Version, parse_version
from ....run.run import Run

LOCAL, ENGINE = "local", "transformer_engine"
ALLGATHER, ALLTOALL = "allgather", "alltoall"
CORE_ATTENTION = "core_attn"  # of recompute_modules

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
    "transformer_engine_version": TRANSFORMER_ENGINE.version,
    "attention_backend": "auto",
    "pipeline_model_parallel_layout": None,
    "decoder_first_pipeline_num_layers": None,
    "decoder_last_pipeline_num_layers": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "microbatch_group_size_per_virtual_pipeline_stage": None,  # None: as many as there are stages
    "num_distributed_optimizer_instances": 1,
    "defer_embedding_wgrad_compute": False,
    "wgrad_deferral_limit": 0,
    "expert_tensor_parallel_size": None,  # None: that of the rest of the model
    "moe_token_dispatcher_type": ALLGATHER,
    "moe_expert_capacity_factor": None,
    "moe_pad_expert_input_to_capacity": False,
    "tp_comm_overlap": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
}
# Defaults of megatron-core's own API: GPTModel takes the vocabulary as it is, and
# ModelParallelConfig keeps stage outputs (model_parallel_config.py:405). The measured programs
# dispatch tokens with all-to-all.
LIBRARY: dict[str, Any] = {
    "make_vocab_size_divisible_by": 1,
    "deallocate_pipeline_outputs": False,
    "moe_token_dispatcher_type": ALLTOALL,
}
# Optimizer -> its arguments of OptimizerConfig (megatron/core/optimizer/optimizer_config.py).
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adam"},
    "adam": {"optimizer": "adam", "decoupled_weight_decay": False},
    "sgd": {"optimizer": "sgd", "sgd_momentum": 0.0},
    "sgd_momentum": {"optimizer": "sgd", "sgd_momentum": 0.9},
    "lion": {"optimizer": "lion"},
}


# Options on which nothing depends but the states of the optimizer and when they move.
OF_STATES = ("distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")


def option(run: Run, name: str) -> Any:
    """An option's value, or its default."""
    value = run.options.get(name)
    return OPTIONS[name] if value is None else value


def is_nanotron(run: Run) -> bool:
    """Whether the layers are nanotron's."""
    return run.arch.implementation == NANOTRON


def fused(run: Run) -> bool:
    """Whether layers are Transformer Engine's."""
    return bool(option(run, "transformer_implementation") == ENGINE)


def distributed(run: Run) -> bool:
    """Whether the optimizer is the distributed one, which shards its states over dp × cp."""
    return bool(option(run, "distributed_optimizer"))


def expert_tp(run: Run) -> Num:
    """Ranks that shard each expert's matrices (model_parallel_config.py:506)."""
    size = option(run, "expert_tensor_parallel_size")
    return run.mesh.tp if size is None else size


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


def engine_version(run: Run) -> Version:
    """The version of Transformer Engine that is modelled: the run's, at most the newest read."""
    newest = TRANSFORMER_ENGINE.numbers
    return min(newest, parse_version(option(run, "transformer_engine_version")) or newest)


def shares_gradient(run: Run) -> bool:
    """Whether a stage with embedding and output layer sums their gradients of a shared table."""
    return run.arch.tied and not fused_weight_gradients(run)


def setting(run: Run, *, selective: bool) -> MegatronSetting:
    """The sizes and choices of kernels with which one rank runs its layers."""
    engine = fused(run)
    modules = (run.rule.modules or (CORE_ATTENTION,)) if selective else ()
    return MegatronSetting(
        batch=run.batch,
        seq=run.seq,
        hidden=run.arch.hidden,
        tp=run.mesh.tp,
        cp=run.mesh.cp,
        ep=run.mesh.ep,
        etp=expert_tp(run),
        gathers_tokens=option(run, "moe_token_dispatcher_type") == ALLGATHER,
        capacity=option(run, "moe_expert_capacity_factor"),
        pads_experts=bool(option(run, "moe_pad_expert_input_to_capacity")),
        bits=bits(run),
        sequence_parallel=run.sequence_parallel,
        transformer_engine=engine,
        fused_attention=engine and option(run, "attention_backend") != "unfused",
        fused_softmax=option(run, "masked_softmax_fusion"),
        float_softmax=option(run, "attention_softmax_in_fp32"),
        fused_weight_gradients=fused_weight_gradients(run),
        loss_in_place=engine_version(run) < (2, 18, 0),
        selective=CORE_ATTENTION in modules,
        recomputed=tuple(name for name in modules if name != CORE_ATTENTION),
    )


def expert_streams(run: Run) -> bool:
    """Whether Megatron-Core makes a CUDA stream: all-to-all copies the experts' counts to the host
    on one, several optimizer instances reduce gradients on one.

    megatron-core 0.19.2 transformer/moe/token_dispatcher.py:469,
    distributed/distributed_data_parallel.py:292.
    """
    counts = has_experts(run) and option(run, "moe_token_dispatcher_type") == ALLTOALL
    return counts or bool(option(run, "num_distributed_optimizer_instances") > 1)
