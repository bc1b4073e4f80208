"""A body as a client sends it, and changes of it."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.estimates.calculator import full_estimate

Body = dict[str, Any]
SAMPLE: Body = {
    "model": {
        "name": "llama2-7b",
        "num_parameters": "7B",
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_seq_len": 4096,
    },
    "training": {
        "batch_size": 4,
        "gradient_accumulation_steps": 4,
        "optimizer": "adamw",
        "dtype": "bf16",
        "activation_checkpointing": 1,
    },
    "parallelism": {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 8,
        "sequence_parallel": False,
    },
    "engine": {
        "type": "deepspeed",
        "zero_stage": 3,
        "offload_optimizer": "cpu",
        "offload_param": "none",
    },
    "hardware": {"num_gpus": 8, "gpu_memory_gb": 80},
}


def changed(body: Body, section: str, **values: Any) -> Body:
    """A body with some fields of a section changed."""
    return {**body, section: {**body.get(section, {}), **values}}


def total(body: Body) -> int:
    """What the ledger says of a run file."""
    return full_estimate(body, replay=False).result.allocated_bytes
