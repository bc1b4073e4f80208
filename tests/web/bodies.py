"""Bodies as the reference calculator's page sends them, and how a client gets an answer."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.web.compat import REFERENCE
from gpu_mem_calculator.web.compat_bodies import from_reference

Body = dict[str, Any]
# The sample of the reference calculator's README.
README: Body = {
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
# What the reference's page sends when nothing was touched.
PAGE: Body = {
    **README,
    "model": {
        **README["model"],
        "name": "custom-model",
        "moe_enabled": False,
        "num_experts": 1,
        "top_k": 1,
        "expert_intermediate_size": None,
        "shared_expert_intermediate_size": None,
    },
    "training": {**README["training"], "activation_checkpointing": 2},
    "engine": {
        **README["engine"],
        "zero_init": True,
        "sharding_strategy": "full_shard",
        "use_distributed_optimizer": False,
        "num_micro_batches": 1,
    },
}
SERVED: Body = {
    "model": PAGE["model"],
    "inference": {
        "engine_type": "vllm",
        "batch_size": 32,
        "kv_cache_quantization": "none",
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.9,
        "use_kv_cache": True,
        "max_total_tokens": 4096,
        "max_input_tokens": 2048,
        "max_batch_total_tokens": 8192,
        "tgi_quantize": "none",
        "tgi_dtype": "bfloat16",
        "sharded": False,
        "num_shard": 1,
        "block_size": 16,
        "swap_space_gb": 0.0,
        "enable_prefix_caching": False,
        "enforce_eager": False,
        "max_num_batched_tokens": None,
        "max_num_seqs": None,
        "vllm_quantization": "none",
        "trt_max_batch_size": 2048,
        "trt_max_input_len": 1024,
        "trt_max_seq_len": 2048,
        "trt_max_beam_width": 1,
        "chunk_size": 8192,
        "max_running_requests": 128,
        "disable_radix_cache": False,
        "enable_p2p": False,
        "disable_custom_all_reduce": False,
        "attention_backend": "flashinfer",
        "enable_torch_compile": False,
        "radix_cache_max_seq_len": 8192,
        "speculative_algo": "default",
        "multi_lora_enabled": False,
    },
    "hardware": {"num_gpus": 1, "gpu_memory_gb": 80},
}


def ask(task: str, body: Any, **options: str) -> Any:
    """An answer, as a client gets it."""
    return msgspec.json.decode(msgspec.json.encode(REFERENCE[task](copy.deepcopy(body), options)))


def changed(body: Body, section: str, **values: Any) -> Body:
    """A body with some fields of a section changed."""
    return {**body, section: {**body.get(section, {}), **values}}


def total(body: Body) -> int:
    """What the ledger says of a run file."""
    return full_estimate(body, replay=False).result.allocated_bytes


def sentences(body: Body) -> str:
    """What is wrong with a body."""
    with pytest.raises(InputError) as raised:
        full_estimate(from_reference(body), replay=False)
    return str(raised.value)
