"""Adapter slots: vLLM allocates `max_loras` slots of `max_lora_rank` for every matrix.

vllm 0.11.0 vllm/lora/layers/*.py create_lora_weights and vllm/lora/models.py: a slot holds A
(rank x inputs) and B (outputs x rank) in the model's dtype, even if an adapter uses less.
If a matrix is split over its outputs A is whole, if over its inputs B is (by default
`fully_sharded_loras` is off), so both follow from the matrix's shape on the rank.

Legend: s slots, r rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.num import ceil_div
from ...model.blocks import Moe
from ...run.run import Run
from ...weights.shards import LINEAR, ROUTER, ServerShard, held
from .versions import version

# Models with slots for the embedding and the head (`embedding_modules`), by first version.
VOCABULARY_SLOTS = (
    ("llama", (0, 0, 0)),
    ("mistral", (0, 0, 0)),
    ("mixtral", (0, 0, 0)),
    ("phi3", (0, 0, 0)),
    ("phimoe", (0, 0, 0)),
    ("granite", (0, 0, 0)),
    ("jamba", (0, 0, 0)),
    ("nemotron", (0, 0, 0)),
    ("exaone", (0, 0, 0)),
    ("solar", (0, 0, 0)),
    ("minicpm", (0, 0, 0)),
    ("bamba", (0, 8, 0)),
    ("falcon_h1", (0, 11, 0)),
    ("lfm2", (0, 11, 0)),
    ("apertus", (0, 11, 0)),
    ("qwen3", (0, 16, 0)),
    ("qwen3_moe", (0, 16, 0)),
)
NO_VOCABULARY_SLOTS = ("llama4", "qwen3_next", "qwen3_5")
FUSED_ON_DISK = ("gpt_oss", "qwen3_5")  # gate and up are one matrix in adapters
EXTRA_WORDS, WORDS_MULTIPLE = 256, 256  # lora_extra_vocab_size, gone in 0.12.0


def adapter_slots(run: Run, shard: ServerShard) -> tuple[tuple[str, int], ...]:
    """Name and bytes of the adapter slots on a rank; empty without max_lora_rank."""
    rank = run.options.get("max_lora_rank")
    if not rank:
        return ()
    size = 4 if run.precision == "fp32" else 2
    slot_bytes = int(run.options.get("max_loras") or 1) * int(rank) * size
    sizes: dict[str, int] = {}
    for part, elements in _matrices(run, shard):
        sizes[part] = sizes.get(part, 0) + elements * slot_bytes
    sizes["embedding and head"] = _vocabulary_bytes(run, shard, slot_bytes, size)
    sizes["indices"] = _index_bytes(run)
    return tuple((f"adapters: {part}", total) for part, total in sizes.items() if total)


def _matrices(run: Run, shard: ServerShard) -> Iterator[tuple[str, int]]:
    """Part, and inputs plus outputs, of every matrix on the rank.

    Experts have slots since 0.11.1 (fused_moe.py).
    """
    for parameter in held(run.arch, shard):
        if (
            parameter.layer >= 0
            and parameter.role in (LINEAR, ROUTER)
            and len(parameter.shape) == 2
        ):
            yield parameter.part or "layers", sum(parameter.shape)
    if version(run) < (0, 11, 1):
        return
    for layer in shard.layers(run.arch):
        if isinstance(layer.mlp, Moe):
            yield "experts", _expert_elements(run, layer.mlp, shard)


def _expert_elements(run: Run, moe: Moe, shard: ServerShard) -> int:
    """Inputs plus outputs of a layer's experts.

    Gate and up have an A each, unless adapters store them as one matrix.
    """
    hidden, inner = run.arch.hidden, int(ceil_div(moe.ffn, shard.expert_tp))
    experts = int(ceil_div(moe.num_experts, shard.ep))
    inputs = 1 if not moe.gated or run.arch.family.startswith(FUSED_ON_DISK) else 2
    return experts * (inputs * hidden + (1 + moe.gated) * inner + inner + hidden)


def has_vocabulary_slots(run: Run) -> bool:
    """Whether the model's embedding and head have adapter slots."""
    name, vllm_version = run.arch.family, version(run)
    if name.startswith(NO_VOCABULARY_SLOTS):
        return False
    return any(
        name.startswith(family) and vllm_version >= since for family, since in VOCABULARY_SLOTS
    )


def _vocabulary_bytes(run: Run, shard: ServerShard, slot_bytes: int, size: int) -> int:
    """Bytes of slots for the embedding and the head, with the whole vocabulary on every rank.

    Before 0.12.0 adapters could add words: every slot has space for them, and the model's tables
    have more rows (vllm 0.11.0 models/llama.py).
    """
    if not has_vocabulary_slots(run):
        return 0
    arch, slots = run.arch, int(run.options.get("max_loras") or 1)
    words = EXTRA_WORDS if version(run) < (0, 12, 0) else 0
    tables = (shard.embedding, shard.head)
    total = slot_bytes * (
        tables[0] * (arch.vocab + words + arch.hidden)
        + tables[1] * (arch.hidden + _padded_words(arch.vocab + words))
    )
    new_words = slots * words * arch.hidden * size  # in each table
    rows = (words * slots, words if arch.head is not None else 0)
    extra_rows = sum(
        int(ceil_div(count, shard.tp))
        for count, present in zip(rows, tables, strict=True)
        if present
    )
    return total + sum(tables) * new_words + extra_rows * arch.hidden * size


def _padded_words(words: int) -> int:
    return int(ceil_div(words, WORDS_MULTIPLE)) * WORDS_MULTIPLE


def _index_bytes(run: Run) -> int:
    """Bytes of the adapter index of each token and sequence.

    vllm 0.11.0 punica_base.py, punica_gpu.py.
    """
    tokens, sequences = int(run.options["max_num_batched_tokens"]), int(run.options["max_num_seqs"])
    count = int(run.options.get("max_loras") or 1)
    return 40 * tokens + 24 * sequences + 8 * (tokens + sequences) + 8 * (3 * count + 4)
