"""Rows of NVIDIA's recipes for NeMo: Megatron-Core with Transformer Engine.

NVIDIA/dgxc-benchmarking: every recipe has the distributed optimizer, gradients and parameters
communicated while layers run, and with tp > 1 sequence parallelism and Transformer Engine's
overlap of its collectives (`ub_tp_comm_overlap`, `overlap_grad_sync`, `overlap_param_sync` in the
recipes' YAML files @v25.01). Only Nemotron-4 340B recomputes anything: the scores of attention,
which a fused kernel never keeps.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from .megatron_sources import OVERLAPS, SPLIT
from .rows import TimingRow
from .sections import RunFileParts, UnusableError, hardware, parallelism, training

NDR = "infiniband-ndr"  # 8 ports of 400 Gb/s for the 8 GPUs of a DGX H100
JAX = ("MaxText", "Paxml")
# sizes: the recipes' YAML files @v25.01
NEMOTRON: dict[str, Any] = {
    "num_key_value_heads": 8,
    "gated_mlp": False,
    "normalization": "layernorm",
    "position_embedding": "rope",
    "bias": False,
    "vocab_size": 256000,
    "max_seq_len": 4096,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "nemotron 15b": {
        "num_layers": 32,
        "hidden_size": 6144,
        "num_attention_heads": 48,
        "intermediate_size": 24576,
        **NEMOTRON,
    },
    "nemotron 340b": {
        "num_layers": 96,
        "hidden_size": 18432,
        "num_attention_heads": 96,
        "intermediate_size": 73728,
        **NEMOTRON,
    },
    "grok 314b": {
        "num_layers": 64,
        "hidden_size": 6144,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "intermediate_size": 32768,
        "gated_mlp": True,
        "normalization": "rmsnorm",
        "position_embedding": "rope",
        "vocab_size": 128256,
        "max_seq_len": 8192,
        "num_experts": 8,
        "top_k": 2,
        "expert_intermediate_size": 32768,
    },
    "gpt 175b": {
        "num_layers": 96,
        "hidden_size": 12288,
        "num_attention_heads": 96,
        "intermediate_size": 49152,
        "gated_mlp": False,
        "normalization": "layernorm",
        "position_embedding": "learned",
        "bias": True,
        "dropout": 0.1,
        "vocab_size": 51200,
        "max_seq_len": 2048,
        "tie_word_embeddings": True,
    },
    "llama 8b": {"name": "llama3.1-8b"},
    "llama 70b": {"name": "llama3.1-70b"},
    "llama 405b": {"name": "llama3.1-405b"},
}
LAYERS_405B = 126


def dgxc(row: TimingRow) -> RunFileParts:
    """One of the tables of a recipe's README."""
    if row.framework in JAX:
        raise UnusableError("JAX is not modelled")
    if row.config_match.startswith("first of"):
        raise UnusableError("two set-ups of its source match it")
    if "differs" in row.check:
        raise UnusableError(f"it contradicts itself: {row.check}")
    if "LoRA" in row.task:
        raise UnusableError("adapters under Megatron-LM are not modelled")
    name = _model_name(row)
    row = replace(row, seq=row.seq or _sequence(row))
    options = {
        "type": "megatron_lm",
        "distributed_optimizer": True,
        **({"moe_token_dispatcher_type": "alltoall"} if name.startswith("grok") else {}),
        **_split(row, name),
    }
    overlaps = OVERLAPS | {"tp_comm_overlap": (row.tp or 1) > 1}
    return RunFileParts(
        model=_model(row, name),
        training=training(row, "bf16_mixed", "none"),
        parallelism=parallelism(row, sequence_parallel=(row.tp or 1) > 1),
        engine=options | overlaps,
        hardware=hardware(row, NDR),
    )


def nemo(row: TimingRow) -> RunFileParts:
    """performance_summary.md: its page says that every row is in FP8."""
    raise UnusableError("the run is in 8 bits, and training in 8 bits is not modelled")


def _model_name(row: TimingRow) -> str:
    """The model of a table, from its title and its file."""
    text = f"{row.model} {row.where}".lower()
    if "nemo megatron" in text:
        return "gpt 175b"
    family = next(word for word in ("nemotron", "grok", "llama") if word in text)
    sizes = [name for name in MODELS if name.startswith(family)]
    return next(name for name in sizes if name.split()[1] in text)


def _model(row: TimingRow, name: str) -> dict[str, Any]:
    """The model; recipes for few GPUs have fewer layers."""
    fewer = {} if row.n_layers is None else {"num_layers": row.n_layers}
    old = name == "llama 405b" and row.where.endswith(("v25.01", "v25.02"))
    groups = {"num_key_value_heads": 16} if old else {}  # llama3.1_405b.yaml:64
    return MODELS[name] | fewer | groups


def _split(row: TimingRow, name: str) -> dict[str, Any]:
    """126 layers and their smaller copies leave room for embedding and head: 128 = 126 + 2."""
    layers = row.n_layers or (LAYERS_405B if name == "llama 405b" else 0)
    chunks = (row.pp or 1) * (row.vp or 1)
    if not layers or layers % chunks == 0:
        return {}
    return SPLIT


def _sequence(row: TimingRow) -> int | None:
    """Tokens of a sequence where only tokens a second are printed: 405B on 576 GPUs and more."""
    if row.tokens_per_s is None or row.step_seconds is None or row.grad_acc is None:
        return None
    ranks = row.n_gpus // ((row.tp or 1) * (row.pp or 1) * (row.cp or 1))
    sequences = ranks * (row.mbs or 1) * row.grad_acc
    return round(row.tokens_per_s * row.step_seconds / sequences) if sequences else None
