"""The weights of one rank of vLLM, as its log counts them ("Model loading took").

Sources: vLLM at the versions named at each function.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...model.arch import Arch
from ...model.blocks import LatentAttention
from ...run.run import Run
from ...weights import WeightFormat
from ...weights.rank_weights import BITS, Item, rotary_tables, run_scheme, weight_items
from ...weights.shards import ServerShard, held
from ...weights.vllm_formats import loaded
from .versions import Version, version

# Families whose code makes the output head on every pipeline stage, not on the last alone (0.11.0
# model_executor/models/*.py: ParallelLMHead without get_pp_group().is_last_rank).
HEADS = frozenset({
    "baichuan", "bloom", "chatglm", "deepseek", "falcon", "gpt2", "gpt_neox", "gpt_oss", "gptj",
    "jamba", "mamba2", "mixtral", "olmo2", "olmoe", "opt", "phi", "phimoe", "qwen2_moe",
    "qwen3_moe", "starcoder2",
})  # fmt: skip
LATENT = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})  # these, too, before 0.8.0
UNPACKED, ABSORBED = "latent attention: unpacked", "latent attention: absorbed"


def weights(run: Run, shard: ServerShard) -> list[Item]:
    """Everything that is on the GPU when the model is loaded, by group."""
    arch, which, bits = run.arch, version(run), BITS[run.precision]
    how = loaded(run_scheme(run), which, run.compute_capability)
    positions = max(arch.max_seq_len, int(run.options.get("max_seq_len") or 0))
    extra = [*rotary_tables(arch, shard, positions, bits),
             *absorbed(arch, shard, how, bits, which)]  # fmt: skip
    if arch.head is not None and _every_stage(arch, which):
        shard = replace(shard, head=True)
    return weight_items(run, shard, how, extra=extra)


def _every_stage(arch: Arch, which: Version) -> bool:
    return arch.family in HEADS or (arch.family in LATENT and which < (0, 8, 0))


def absorbed(
    arch: Arch, shard: ServerShard, how: WeightFormat, bits: int, which: Version
) -> Iterator[Item]:
    """What is kept of latent attention's projections beside them.

    Since 0.8.0 (attention/backends/mla/common.py process_weights_after_loading) 16-bit W_UV and
    W_UK, which are views of kv_b where that is not quantized. 0.7.1 to 0.7.3 (mla/utils.py) keep
    the absorbed W_Q_UK and W_UV_O, in FP8 where the weights are, and the rotary part of q; until
    0.7.2 they unpack to fp32.
    """
    for one in held(arch, shard):
        mixer = arch.layers[one.layer].mixer if one.layer >= 0 else None
        if not isinstance(mixer, LatentAttention) or not one.name.endswith("kv_b_proj.weight"):
            continue
        packed = how.packs(one)
        if packed:
            yield UNPACKED, one.numel * (32 if which < (0, 7, 3) else bits) // 8
        if (0, 7, 1) <= which < (0, 8, 0):
            width = 8 if packed and how.name == "fp8" else bits
            heads, query = mixer.heads // shard.attention_tp, mixer.query_rank or arch.hidden
            yield ABSORBED, query * heads * mixer.kv_rank * width // 8
            yield ABSORBED, heads * mixer.kv_rank * arch.hidden * width // 8
            yield ABSORBED, query * heads * mixer.rope_dim * bits // 8
