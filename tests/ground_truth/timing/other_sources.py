"""Rows of llm-foundry (FSDP), InternEvo and DeepSpeed."""

from __future__ import annotations

from msgspec.structs import replace

from .rows import TimingRow
from .sections import (
    RunFileParts,
    UnusableError,
    gpt,
    hardware,
    number,
    parallelism,
    ranks,
    training,
)

MPT_VOCAB = 50368
LITTLE = 0.1
LIGER = ["rope", "rms_norm", "swiglu", "cross_entropy"]
INTERNLM = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "gated_mlp": True,
    "normalization": "rmsnorm",
    "position_embedding": "rope",
    "vocab_size": 103168,
    "max_seq_len": 2048,
    "tie_word_embeddings": False,
}


def llm_foundry(row: TimingRow) -> RunFileParts:
    """scripts/train/benchmarking/README.md @8c8dd48f7: MPT without biases under FSDP 1 with
    FlashAttention. `DEFAULT` reduces gradients in fp32, `PURE` in bf16. The network of its H100s is
    not stated: 400 Gb/s for each GPU, as such nodes usually have.

    Its tables of 2023 are from FlashAttention 1 (sweep.sh: v0.0.4), which is half as fast as 2 and
    has no name in a run file: they are used where attention is little of the FLOPs. In the table of
    2024, 13B and 30B have Triton's attention (sweep.py).
    """
    row = replace(row, tp=1, pp=1, vocab=MPT_VOCAB)
    newer = "Large Scale" in row.section
    if newer and row.model in ("MPT-13b", "MPT-30b"):
        raise UnusableError("its attention is Triton's, which is not modelled")
    if not newer and attention_share(row) > LITTLE:
        raise UnusableError("FlashAttention 1 is not modelled, and is over 10 % of its FLOPs")
    pure = row.fsdp_mixed_precision == "PURE"
    recompute = "full" if row.recompute == "full" else "none"
    strategy = "shard_grad_op" if row.strategy.endswith("SHARD_GRAD_OP") else "full_shard"
    return RunFileParts(
        model=gpt(row, bias=False, dropout=0.0),
        training=training(row, "bf16_mixed", recompute, attention="flash_attention_2"),
        parallelism=parallelism(row),
        engine={
            "type": "fsdp",
            "fsdp_version": 1,
            "sharding_strategy": strategy,
            "reduce_dtype": "bf16" if pure else "fp32",
        },
        hardware=hardware(row, "infiniband-ndr" if row.gpu.startswith("H") else "roce-200g"),
    )


def attention_share(row: TimingRow) -> float:
    """The part of a model's FLOPs that is attention, all pairs counted."""
    layers, hidden = number(row, "n_layers"), number(row, "hidden")
    weights = 12 * layers * hidden**2 + MPT_VOCAB * hidden
    attention = 12 * layers * hidden * number(row, "seq")
    return attention / (6 * weights + attention)


def internevo(row: TimingRow) -> RunFileParts:
    """doc/en/train_performance.md @c628a8c: FlashAttention, ZeRO-1 over all ranks or groups of
    them, gradients are reduced while layers run, parameters gathered when they are stepped
    (configs/7B_sft.py: overlap_sync_grad, overlap_sync_param), in the dtype of the weights.
    InternEvo is not modelled: this is Megatron-LM's optimizer with as many instances.
    """
    dp = ranks(row)["data"]
    group = dp if row.zero1_group in (None, -1) else int(row.zero1_group or dp)
    if dp % group:
        raise UnusableError("its ZeRO group does not divide its data-parallel ranks")
    return RunFileParts(
        model=INTERNLM,
        training=training(row, "bf16_mixed", "full" if row.recompute == "full" else "none"),
        parallelism=parallelism(row),
        engine={
            "type": "megatron_lm",
            "distributed_optimizer": True,
            "num_distributed_optimizer_instances": dp // group,
            "overlap_grad_reduce": True,
            "accumulate_allreduce_grads_in_fp32": False,
        },
        hardware=hardware(row, "roce-50g"),  # 4 ports of 100 Gb/s for the 8 GPUs of a node
    )


def stas00(row: TimingRow) -> RunFileParts:
    """insights/when-to-upgrade-gpus/benchmark.py: ZeRO-3 with CPU Adam, Liger, checkpointing. Its
    fused loss is not modelled under ZeRO-3; Liger's cross entropy takes its place.
    """
    if row.gpu != "H200":
        raise UnusableError("FlashAttention 4 is not modelled")
    return RunFileParts(
        model={"name": "llama3.1-8b"},
        training=training(row, "bf16_mixed", "full", attention="flash_attention_3", liger=LIGER),
        parallelism=parallelism(row),
        engine={
            "type": "deepspeed",
            "zero_stage": 3,
            "offload_optimizer": "cpu",
            "overlap_comm": True,
        },
        hardware=hardware(row, ""),
    )


def unknown(row: TimingRow) -> RunFileParts:
    """Rows with too little of a set-up."""
    raise UnusableError("its source gives too little of the set-up")
