"""Weights of one rank of vLLM, as its log counts them ("Model loading took"), in the formats that
vLLM loads them in, which may differ from the file's.

Sources: vLLM at the versions named at each function; formats: model_executor/layers/quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from ...ledger.formula import Formula
from ...ledger.num import power_of_two
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
    segments,
    stored,
    weight_items,
)
from ...run.weights.recipes import NF4_PLAIN
from ...run.weights.shards import ServerShard, held
from ...run.weights.weight_formulas import weight_formulas
from .versions import Version, version

# Families whose code allocates the output head on every pipeline stage, not only the last (0.11.0
# model_executor/models/*.py: ParallelLMHead without get_pp_group().is_last_rank).
HEAD_ON_EVERY_STAGE = words("""
    baichuan bloom chatglm deepseek falcon gpt2 gpt_bigcode gpt_neox gpt_oss gptj granitemoe
    granitemoehybrid internlm2 jamba mamba2 mixtral nemotron_h olmo2 olmoe opt phi phimoe qwen
    qwen2_moe qwen3_moe qwen3_next stablelm starcoder2
""")
# The same of the embedding (VocabParallelEmbedding without is_first_rank): these, and
EMBEDDING_ON_EVERY_STAGE = words("cohere cohere2 gemma gemma2 gemma3 gemma3_text lfm2 mpt")
# Until these releases other families had them, too: 0.7.3 deepseek_v2.py; 0.6.4 and 0.6.1 qwen2.py.
HEAD_UNTIL = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), (0, 8, 0)),
    "qwen2": (0, 6, 5),
}
EMBEDDING_UNTIL = {"qwen2": (0, 6, 2)}
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


def backup_bytes(run: Run, shard: ServerShard, loaded: int) -> int:
    """What `loaded` bytes of weights take of the host while the server sleeps at level 1. Each
    segment on the GPU is copied into a pinned block, for which torch takes a power of two.

    vllm 0.7.0 to 0.28.0 device_allocator/cumem.py CuMemAllocator.sleep.
    """
    weight_format = loaded_format(run_format(run), version(run), run.compute_capability)
    tensors = stored(run.arch, _with_heads(run, shard), weight_format, BITS[run.precision])
    sizes = [size for _, size in tensors]
    pinned = sum(map(power_of_two, segments(sizes)))
    return loaded * pinned // max(1, sum(sizes))


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
    """The rank's part of the model, with what every stage has: the head, the embedding, or both."""
    family, now = run.arch.family, version(run)
    head = family in HEAD_ON_EVERY_STAGE
    embedding = head or family in EMBEDDING_ON_EVERY_STAGE
    if embedding or (family in EMBEDDING_UNTIL and now < EMBEDDING_UNTIL[family]):
        shard = replace(shard, embedding=True)
    has_head = head or (family in HEAD_UNTIL and now < HEAD_UNTIL[family])
    return replace(shard, head=True) if run.arch.head is not None and has_head else shard


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


TRITON_FROM, SCALES_FREED_FROM = (0, 11, 0), (0, 25, 0)


def loaded_format(scheme: WeightFormat, release: Version, capability: str) -> WeightFormat:
    """The format on the GPU; `capability` is the card's compute capability."""
    major = int(capability.partition(".")[0])
    if scheme.pack is None:
        return scheme
    if scheme.name == "mxfp4" and scheme.experts:
        return _mxfp4(scheme, release, major)
    if scheme.name.startswith("gptq"):
        return _gptq(scheme)
    if scheme.name == "nf4" and scheme.pack.nested:
        # 0.11.0 bitsandbytes_loader.py _dequantize_dq: the scales are unpacked to fp32
        return replace(scheme, pack=NF4_PLAIN)
    if scheme.name == "nvfp4" and major >= 10:
        # 0.11.0 utils/quant_utils.py swizzle_blockscale: whole tiles of 128 x 4 scales
        return scheme.changed(scale_rows=128, scale_columns=4)
    return scheme


def _gptq(scheme: WeightFormat) -> WeightFormat:
    """Marlin, 0.11.0 kernels/mixed_precision/marlin.py: symmetric zero points are dropped.

    The order of the inputs is dropped too, unless activations are sorted by it; then two copies
    of it are kept.
    """
    pack = scheme.pack
    if pack is None or not pack.symmetric:
        return scheme
    return scheme.changed(zero_bits=0, index=64 if pack.ordered else 0)


def _mxfp4(scheme: WeightFormat, release: Version, major: int) -> WeightFormat:
    """gpt-oss, by kernel (0.11.0 quantization/mxfp4.py get_mxfp4_backend, create_weights).

    - FlashInfer on Blackwell of data centres (capability 10): both sizes are rounded up to 256,
      biases in fp32.
    - Triton on Hopper, if triton_kernels is installed (in the wheel since 0.12.0): the scales are
      swizzled into a second copy with rows rounded up to 256 (triton_kernels 3.5.0
      hopper_scale.py), and the first is freed since 0.25.0; biases in fp32.
    - otherwise Marlin: hidden size rounded up to 256, inner size to 128. Blackwell's other cards,
      too (0.13.0 get_mxfp4_backend, 0.19.0 fused_moe/oracle/mxfp4.py: Triton below 11).
    """
    if major == 10:
        padded = replace(scheme, bias_bits=32)
        return padded.changed(hidden_multiple=256, inner_multiple=256)
    if major != 9 or release < TRITON_FROM:
        return scheme.changed(hidden_multiple=256, inner_multiple=128)
    padded = replace(scheme, bias_bits=32)
    if release >= SCALES_FREED_FROM:
        return padded.changed(inner_multiple=64, scale_rows=256, scale_columns=2)
    return padded.changed(inner_multiple=64, swizzled_rows=256)
