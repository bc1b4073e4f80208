"""vLLM servers for tests."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.run.served import ServerMemory
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.serving.vllm.engine import serve
from gpu_mem_calculator.tools.read import read

R1 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}


def run(
    model: str | dict[str, Any] = "llama3.1-8b",
    gpu: str = "h100-80gb-sxm",
    free: float | None = None,
    **inference: Any,
) -> Run:
    """A run, by default of the newest version on an idle H100."""
    hardware: dict[str, Any] = {"gpu": gpu}
    if free is not None:
        hardware["available_memory_bytes"] = int(free * GIB)
    section = {"name": model} if isinstance(model, str) else {"config": model}
    file = {"model": section, "inference": {"engine": "vllm", **inference}, "hardware": hardware}
    return resolve_inference(read(file).file).run


def served(*args: Any, **inference: Any) -> ServerMemory:
    """The memory of the first stage of a server."""
    return serve(run(*args, **inference))


def item(memory: ServerMemory, name: str) -> int:
    """Bytes of the item with this name."""
    return sum(one.bytes for one in memory.items if one.name == name)
