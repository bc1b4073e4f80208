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
from ...ledger.source import code
from ...ledger.words import words
from ...models.arch.blocks import Moe
from ...run.run import Run
from ...run.weights.shards import LINEAR, ROUTER, ServerShard, held
from .sampler import SourcedBytes
from .versions import version

SOURCE = code("vllm 0.11.0 vllm/lora/layers, allocated while the model is loaded")
# Models with slots for the embedding and the head (`embedding_modules`), by first version.
VOCABULARY_SLOTS = {
    (0, 0, 0): words(
        "llama mistral mixtral phi3 phimoe granite jamba nemotron exaone solar minicpm"
    ),
    (0, 8, 0): words("bamba"),
    (0, 11, 0): words("falcon_h1 lfm2 apertus"),
    (0, 16, 0): words("qwen3 qwen3_moe"),
}
NO_VOCABULARY_SLOTS = ("llama4", "qwen3_next", "qwen3_5")
FUSED_ON_DISK = ("gpt_oss", "qwen3_5")  # gate and up are one matrix in adapters
EXTRA_WORDS, WORDS_MULTIPLE = 256, 256  # lora_extra_vocab_size, gone in 0.12.0


def adapter_slots(run: Run, shard: ServerShard) -> tuple[SourcedBytes, ...]:
    """The adapter slots on a rank; empty without max_lora_rank."""
    rank = run.options.get("max_lora_rank")
    if not rank:
        return ()
    size = 4 if run.precision == "fp32" else 2
    slots = int(run.options.get("max_loras") or 1)
    slot_bytes = slots * int(rank) * size
    elements: dict[str, int] = {}
    for part, count in _matrices(run, shard):
        elements[part] = elements.get(part, 0) + count
    slot = f"{slots} adapters × rank {rank} × {size} bytes"
    parts = [
        SourcedBytes(
            f"adapters: {part}",
            count * slot_bytes,
            SOURCE,
            f"{slot} × {count:,} inputs and outputs",
        )
        for part, count in elements.items()
    ]
    vocabulary = _vocabulary_bytes(run, shard, slot_bytes, size)
    parts.append(SourcedBytes("adapters: embedding and head", vocabulary, SOURCE))
    parts.append(SourcedBytes("adapters: indices", _index_bytes(run), SOURCE))
    return tuple(part for part in parts if part.bytes)


def _matrices(run: Run, shard: ServerShard) -> Iterator[tuple[str, int]]:
    """Part, and inputs plus outputs, of every matrix on the rank.

    Experts have slots since 0.11.1 (fused_moe.py).
    """
    for parameter in held(run.arch, shard):
        matrix = parameter.role in (LINEAR, ROUTER) and len(parameter.shape) == 2
        if parameter.layer >= 0 and matrix:
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
        name.startswith(tuple(families)) and vllm_version >= since
        for since, families in VOCABULARY_SLOTS.items()
    )


def _vocabulary_bytes(run: Run, shard: ServerShard, slot_bytes: int, size: int) -> int:
    """Bytes of slots for the embedding and the head, with the whole vocabulary on every rank.

    Before 0.12.0 adapters could add words: every slot has space for them, and the model's tables
    have more rows (vllm 0.11.0 models/llama.py).
    """
    if not has_vocabulary_slots(run):
        return 0
    arch, slots = run.arch, int(run.options.get("max_loras") or 1)
    extra = EXTRA_WORDS if version(run) < (0, 12, 0) else 0
    tables = (shard.embedding, shard.head)
    total = slot_bytes * (
        tables[0] * (arch.vocab + extra + arch.hidden)
        + tables[1] * (arch.hidden + _padded_words(arch.vocab + extra))
    )
    new_words = slots * extra * arch.hidden * size  # in each table
    rows = (extra * slots, extra if arch.head is not None else 0)
    present = zip(rows, tables, strict=True)
    extra_rows = sum(int(ceil_div(count, shard.tp)) for count, table in present if table)
    return total + sum(tables) * new_words + extra_rows * arch.hidden * size


def _padded_words(count: int) -> int:
    return int(ceil_div(count, WORDS_MULTIPLE)) * WORDS_MULTIPLE


def _index_bytes(run: Run) -> int:
    """Bytes of the adapter index of each token and sequence.

    vllm 0.11.0 punica_base.py, punica_gpu.py.
    """
    tokens, sequences = int(run.options["max_num_batched_tokens"]), int(run.options["max_num_seqs"])
    count = int(run.options.get("max_loras") or 1)
    return 40 * tokens + 24 * sequences + 8 * (tokens + sequences) + 8 * (3 * count + 4)
