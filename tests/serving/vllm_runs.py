"""vLLM runs for tests: a model by name or config.json, and the options that its cache reads."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpu_mem_calculator.ledger.mesh import Mesh
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.run.weights.shards import ServerShard
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.serving.vllm.cache import BlockPool, block_pool

GIB = 2**30
OPTIONS: dict[str, Any] = {
    "engine_version": "0.11.0",
    "engine_generation": "v1",
    "kv_cache_dtype": "auto",
    "block_size": None,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_seq_len": 8192,
    "decode_context_parallel_size": 1,
    "enable_prefix_caching": None,
    "quantization": "none",
    "speculative_method": None,
    "num_speculative_tokens": None,
    "max_lora_rank": None,
    "max_loras": None,
}


@cache
def _arch(text: bytes) -> Arch:
    model = msgspec.json.decode(text)
    named = isinstance(model, str)
    return find_model(ModelConfig(name=model) if named else ModelConfig(config=model)).arch


def arch(model: str | dict[str, Any]) -> Arch:
    """The architecture of a preset, or of a config.json."""
    return _arch(msgspec.json.encode(model))


def run_and_shard(
    model: str | dict[str, Any],
    *,
    tp: int = 1,
    pp: int = 1,
    card: str = "9.0",
    precision: str = "bf16_pure",
    draft: Arch | None = None,
    quantized: dict[str, Any] | None = None,
    places: range | None = None,
    **options: Any,
) -> tuple[Run, ServerShard]:
    """A run, and the shard of a rank with `places` of its layers (default: all)."""
    model_arch = arch(model)
    run = Run(
        arch=model_arch,
        mesh=Mesh(dp=1, tp=tp, pp=pp),
        batch=1,
        seq=1,
        micro_batches=1,
        precision=precision,
        options={**OPTIONS, **options},
        compute_capability=card,
        draft=draft,
        quantized=quantized,
    )
    layers = range(len(model_arch.layers)) if places is None else places
    last = layers.stop == len(model_arch.layers)
    return run, ServerShard(
        places=layers, tp=tp, attention_tp=tp, expert_tp=tp, head=last, embedding=layers.start == 0
    )


def pool_of(model: str | dict[str, Any], gib: float = 10.0, **options: Any) -> BlockPool:
    """The pool of a rank from `gib` GiB."""
    run, shard = run_and_shard(model, **options)
    return block_pool(run, shard, int(gib * GIB))


@cache
def logs() -> list[dict[str, Any]]:
    """Start-ups whose log shows a pool and its tokens."""
    path = Path(__file__).parents[1] / "ground_truth/vllm_pages.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]
