"""Weights of one rank of vLLM, as its log counts them ("Model loading took").

Sources: vLLM at the versions named at each function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from ...ledger.formula import Formula
from ...ledger.words import words
from ...models.arch.arch import Arch
from ...models.arch.blocks import LatentAttention
from ...run.run import Run
from ...run.weights import WeightFormat
from ...run.weights.rank_weights import (
    BITS,
    Item,
    rotary_formulas,
    rotary_tables,
    run_format,
    weight_items,
)
from ...run.weights.shards import ServerShard, held
from ...run.weights.weight_formulas import weight_formulas
from .formats import loaded_format
from .versions import Version, version

# Families whose code allocates the output head on every pipeline stage, not only the last (0.11.0
# model_executor/models/*.py: ParallelLMHead without get_pp_group().is_last_rank).
HEAD_ON_EVERY_STAGE = words("""
    baichuan bloom chatglm deepseek falcon gpt2 gpt_neox gpt_oss gptj jamba mamba2 mixtral olmo2
    olmoe opt phi phimoe qwen2_moe qwen3_moe starcoder2
""")
HEAD_ON_EVERY_STAGE_UNTIL_0_8 = words("deepseek_v2 deepseek_v3 kimi_k2")  # too, before 0.8.0
UNPACKED, ABSORBED = "latent attention: unpacked", "latent attention: absorbed"


def rank_weights(run: Run, shard: ServerShard) -> list[Item]:
    """Name and bytes of all tensors on the GPU after the model is loaded, by group."""
    arch, vllm_version, bits = run.arch, version(run), BITS[run.precision]
    weight_format = loaded_format(run_format(run), vllm_version, run.compute_capability)
    extra = [
        *rotary_tables(arch, shard, _positions(run), bits),
        *latent_projections(arch, shard, weight_format, bits, vllm_version),
    ]
    return weight_items(run, _with_heads(run, shard), weight_format, extra=extra)


def rank_formulas(run: Run, shard: ServerShard) -> Callable[[str], Formula]:
    """A function from the name of an item of `rank_weights` to its formula."""
    arch, vllm_version, bits = run.arch, version(run), BITS[run.precision]
    weight_format = loaded_format(run_format(run), vllm_version, run.compute_capability)
    copies = latent_projections(arch, shard, weight_format, bits, vllm_version)
    extra = [
        *rotary_formulas(arch, shard, _positions(run), bits),
        *((name, f"{size:,} bytes") for name, size in copies),
    ]
    return weight_formulas(run, _with_heads(run, shard), weight_format, extra)


def _positions(run: Run) -> int:
    return max(run.arch.max_seq_len, int(run.options.get("max_seq_len") or 0))


def _with_heads(run: Run, shard: ServerShard) -> ServerShard:
    """The rank's part of the model, with the head where every stage has one."""
    if run.arch.head is not None and _has_head_on_every_stage(run.arch, version(run)):
        return replace(shard, head=True)
    return shard


def _has_head_on_every_stage(arch: Arch, vllm_version: Version) -> bool:
    return arch.family in HEAD_ON_EVERY_STAGE or (
        arch.family in HEAD_ON_EVERY_STAGE_UNTIL_0_8 and vllm_version < (0, 8, 0)
    )


def latent_projections(
    arch: Arch, shard: ServerShard, weight_format: WeightFormat, bits: int, vllm_version: Version
) -> Iterator[Item]:
    """Copies of latent attention's projections that are stored in addition to the weights.

    Since 0.8.0 (attention/backends/mla/common.py process_weights_after_loading) 16-bit W_UV and
    W_UK, which are views of kv_b if that is not quantized. 0.7.1 to 0.7.3 (mla/utils.py) keep
    the absorbed W_Q_UK and W_UV_O, in FP8 if the weights are, and the rotary part of q; until
    0.7.2 they unpack to fp32.
    """
    for parameter in held(arch, shard):
        mixer = arch.layers[parameter.layer].mixer if parameter.layer >= 0 else None
        if not isinstance(mixer, LatentAttention) or not parameter.name.endswith(
            "kv_b_proj.weight"
        ):
            continue
        packed = weight_format.packs(parameter)
        if packed:
            yield UNPACKED, parameter.numel * (32 if vllm_version < (0, 7, 3) else bits) // 8
        if (0, 7, 1) <= vllm_version < (0, 8, 0):
            width = 8 if packed and weight_format.name == "fp8" else bits
            heads, query = mixer.heads // shard.attention_tp, mixer.query_rank or arch.hidden
            yield ABSORBED, query * heads * mixer.kv_rank * width // 8
            yield ABSORBED, heads * mixer.kv_rank * arch.hidden * width // 8
            yield ABSORBED, query * heads * mixer.rope_dim * bits // 8
