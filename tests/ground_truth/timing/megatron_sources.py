"""Rows of Megatron-LM and Megatron-DeepSpeed.

Before FlashAttention, their layers are Megatron's local ones: attention without fusion but for mask
and softmax.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from .rows import TimingRow
from .sections import RunFileParts, UnusableError, gpt, hardware, parallelism, training

LOCAL = {"transformer_implementation": "local", "masked_softmax_fusion": True}
MEGATRON: dict[str, Any] = {"type": "megatron_lm", **LOCAL}
SHARDED = {"overlap_grad_reduce": True, "overlap_param_gather": True}
OVERLAPS = {"tp_comm_overlap": True, **SHARDED}
SPLIT = {
    "account_for_embedding_in_pipeline_split": True,
    "account_for_loss_in_pipeline_split": True,
}
# 4 Omni-Path ports of 100 Gb/s for the 8 GPUs of a node (Jean Zay, A100 nodes)
JEAN_ZAY = "omni-path-50g"
SELENE = "infiniband-hdr"  # 8 HDR ports of 200 Gb/s for 8 GPUs (SC21, section 5)


def vtrain(row: TimingRow) -> RunFileParts:
    """config/validation/single: activation checkpointing on, 1F1B, no gradient buckets: gradients
    are reduced after backward. The fork is Megatron-DeepSpeed without ZeRO. A rank has
    50257 // tp tokens of the vocabulary (src/model/gpt_modeling.py:41), which are not padded.
    """
    row = replace(row, vocab=(row.vocab or 0) // (row.tp or 1) * (row.tp or 1))
    return RunFileParts(
        model=gpt(row),
        training=training(row, "fp16_mixed", "full"),
        parallelism=parallelism(row),
        engine={
            "type": "megatron_deepspeed",
            "zero_stage": 0,
            "make_vocab_size_divisible_by": 1,
            **LOCAL,
        },
        hardware=hardware(row, "infiniband-hdr"),
    )


def bigscience(row: TimingRow) -> RunFileParts:
    """train/tr11-176B-ml/chronicles-prequel.md @9e64ede. Sizes that the tables lack stand around
    them: lines 364 to 410 (hidden 14400, heads), 603 to 665 (hidden, layers), 680 (64 heads, "above
    too"), 769 to 814. The layers of hidden 14400 follow exactly from seconds x TFLOPs. From line
    887 on, embedding and head count as a layer each when stages are made. The engine of
    Megatron-DeepSpeed has no such option, so these runs are Megatron-LM's with the distributed
    optimizer.
    """
    precision = f"{row.precision}_mixed"
    zero = 0 if row.strategy.endswith("ZeRO-0") else 1
    engine = {"type": "megatron_deepspeed", "zero_stage": zero, **LOCAL}
    if row.balanced:
        engine = {**MEGATRON, "distributed_optimizer": True, **SPLIT}
    return RunFileParts(
        model=gpt(row, dropout=0.0),
        training=training(row, precision, "full"),
        parallelism=parallelism(row),
        engine=engine,
        hardware=hardware(row, JEAN_ZAY),
    )


def korthikanti(row: TimingRow) -> RunFileParts:
    """arXiv 2205.05198, table 5: full recompute, or selective with sequence parallelism."""
    selective = row.recompute.startswith("selective")
    return RunFileParts(
        model=gpt(row),
        training=training(row, "fp16_mixed", "selective" if selective else "full"),
        parallelism=parallelism(row, sequence_parallel=bool(row.sp)),
        engine=MEGATRON,
        hardware=hardware(row, SELENE),
    )


def sc21(row: TimingRow) -> RunFileParts:
    """arXiv 2104.04473, table 1; chunks of a stage from examples/sc21/run_table_1.sh."""
    return RunFileParts(
        model=gpt(row),
        training=training(row, "fp16_mixed", "full"),
        parallelism=parallelism(row),
        engine=MEGATRON,
        hardware=hardware(row, SELENE),
    )


def megascale(row: TimingRow) -> RunFileParts:
    """arXiv 2402.15627, table 2, the rows of its baseline. FlashAttention is one of MegaScale's own
    changes, so the baseline recomputes the scores of attention.
    """
    if "baseline" not in row.framework:
        raise UnusableError("MegaScale's own parallel block and sliding window are not in the row")
    return RunFileParts(
        model=gpt(row),
        training=training(row, "bf16_mixed", "selective"),
        parallelism=parallelism(row, sequence_parallel=True),
        engine={**MEGATRON, "distributed_optimizer": True},
        hardware=hardware(row, "roce-200g"),
    )


def llama3(row: TimingRow) -> RunFileParts:
    """arXiv 2407.21783, table 4: 16M tokens a batch; the first and the last of 16 x 8 chunks of one
    layer have the embedding and the head instead; at 8k nothing is recomputed, which leaves memory
    for micro-batches of one sequence. Gradients and weights of data parallelism travel while layers
    run; nothing is said of tensor parallelism.
    """
    if row.seq != 8192:
        raise UnusableError("its FLOPs depend by 40 % on how its source counts causal attention")
    row = replace(row, mbs=1, vp=8)
    return RunFileParts(
        model={"name": "llama3.1-405b"},
        training=training(row, "bf16_mixed", "none"),
        parallelism=parallelism(row, sequence_parallel=True),
        engine={"type": "megatron_lm", "distributed_optimizer": True, **SPLIT, **SHARDED},
        hardware=hardware(row, "roce-400g"),
    )
