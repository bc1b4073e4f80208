"""Room for adapters: vLLM makes `max_loras` slots of `max_lora_rank` beside every matrix.

vllm 0.11.0 vllm/lora/layers/*.py create_lora_weights and vllm/lora/models.py: a slot holds A
(rank x inputs) and B (outputs x rank) in the model's dtype, whatever an adapter uses of them.
Where a matrix is cut over its outputs A is whole, where over its inputs B is (as by default,
`fully_sharded_loras` is off), so both follow from the matrix as the rank holds it.

Legend: s slots, r rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.num import ceil_div
from ...model.blocks import Moe
from ...run.run import Run
from ...weights.shards import LINEAR, ROUTER, ServerShard, held
from .versions import version

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Models with slots beside the embedding and the head too (`embedding_modules`), and since when.
EMBEDDED = (
    ("llama", (0, 0, 0)), ("mistral", (0, 0, 0)), ("mixtral", (0, 0, 0)), ("phi3", (0, 0, 0)),
    ("phimoe", (0, 0, 0)), ("granite", (0, 0, 0)), ("jamba", (0, 0, 0)), ("nemotron", (0, 0, 0)),
    ("exaone", (0, 0, 0)), ("solar", (0, 0, 0)), ("minicpm", (0, 0, 0)), ("bamba", (0, 8, 0)),
    ("falcon_h1", (0, 11, 0)), ("lfm2", (0, 11, 0)), ("apertus", (0, 11, 0)),
    ("qwen3", (0, 16, 0)), ("qwen3_moe", (0, 16, 0)),
)  # fmt: skip
NOT_EMBEDDED = ("llama4", "qwen3_next", "qwen3_5")
FUSED_ON_DISK = ("gpt_oss", "qwen3_5")  # adapters whose gate and up are one matrix
EXTRA_WORDS, WORDS_MULTIPLE = 256, 256  # lora_extra_vocab_size, gone in 0.12.0


def problems(run: Run) -> Iterator[str]:
    """What vLLM would refuse."""
    rank = run.options.get("max_lora_rank")
    allowed = RANKS if version(run) < (0, 12, 0) else (1, *RANKS)
    if rank is not None and rank not in allowed:
        nearest = min((size for size in allowed if size >= rank), default=max(allowed))
        yield (f"inference.max_lora_rank={rank} must be one of {', '.join(map(str, allowed))}; "
               f"try {nearest}")  # fmt: skip
    if rank is None and (run.options.get("max_loras") or 1) > 1:
        yield "inference.max_loras needs inference.max_lora_rank; set it to 16 (vLLM's default)"


def slots(run: Run, shard: ServerShard) -> tuple[tuple[str, int], ...]:
    """What is made for adapters on the rank, by where it stands; nothing without a rank."""
    rank = run.options.get("max_lora_rank")
    if not rank:
        return ()
    size = 4 if run.precision == "fp32" else 2
    each = int(run.options.get("max_loras") or 1) * int(rank) * size
    found: dict[str, int] = {}
    for part, elements in _matrices(run, shard):
        found[part] = found.get(part, 0) + elements * each
    found["embedding and head"] = _vocabulary(run, shard, each, size)
    found["indices"] = _indices(run)
    return tuple((f"adapters: {part}", total) for part, total in found.items() if total)


def _matrices(run: Run, shard: ServerShard) -> Iterator[tuple[str, int]]:
    """Rows and columns of every matrix on the rank, experts' since 0.11.1 (fused_moe.py)."""
    for one in held(run.arch, shard):
        if one.layer >= 0 and one.role in (LINEAR, ROUTER) and len(one.shape) == 2:
            yield one.part or "layers", sum(one.shape)
    if version(run) < (0, 11, 1):
        return
    for layer in shard.layers(run.arch):
        if isinstance(layer.mlp, Moe):
            yield "experts", _experts(run, layer.mlp, shard)


def _experts(run: Run, moe: Moe, shard: ServerShard) -> int:
    """Gate and up each have their own A, but where adapters hold them as one."""
    hidden, inner = run.arch.hidden, int(ceil_div(moe.ffn, shard.expert_tp))
    own = int(ceil_div(moe.num_experts, shard.ep))
    inputs = 1 if not moe.gated or run.arch.family.startswith(FUSED_ON_DISK) else 2
    return own * (inputs * hidden + (1 + moe.gated) * inner + inner + hidden)


def embedded(run: Run) -> bool:
    """Whether the model's embedding and head have slots."""
    name, now = run.arch.family, version(run)
    if name.startswith(NOT_EMBEDDED):
        return False
    return any(name.startswith(family) and now >= since for family, since in EMBEDDED)


def _vocabulary(run: Run, shard: ServerShard, each: int, size: int) -> int:
    """Slots beside the embedding and the head, of the whole vocabulary on every rank.

    Before 0.12.0 adapters could bring words of their own: room for them in every slot, and rows
    more in the model's tables (vllm 0.11.0 models/llama.py).
    """
    if not embedded(run):
        return 0
    arch, slots_ = run.arch, int(run.options.get("max_loras") or 1)
    words = EXTRA_WORDS if version(run) < (0, 12, 0) else 0
    both = (shard.embedding, shard.head)
    total = each * (both[0] * (arch.vocab + words + arch.hidden)
                    + both[1] * (arch.hidden + _padded(arch.vocab + words)))  # fmt: skip
    own = slots_ * words * arch.hidden * size  # each table's new words
    rows = (words * slots_, words if arch.head is not None else 0)
    more = sum(int(ceil_div(n, shard.tp)) for n, here in zip(rows, both, strict=True) if here)
    return total + sum(both) * own + more * arch.hidden * size


def _padded(words: int) -> int:
    return int(ceil_div(words, WORDS_MULTIPLE)) * WORDS_MULTIPLE


def _indices(run: Run) -> int:
    """Which adapter each token and sequence uses (vllm 0.11.0 punica_base.py, punica_gpu.py)."""
    tokens, sequences = int(run.options["max_num_batched_tokens"]), int(run.options["max_num_seqs"])
    count = int(run.options.get("max_loras") or 1)
    return 40 * tokens + 24 * sequences + 8 * (tokens + sequences) + 8 * (3 * count + 4)
