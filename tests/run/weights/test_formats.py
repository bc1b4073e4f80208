"""Quantized formats: bytes of a matrix, of published checkpoints, and what stays unquantized."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.run.weights import FormatError, WeightFormat, find_format
from gpu_mem_calculator.run.weights.recipes import RECIPES
from gpu_mem_calculator.run.weights.scheme import MatrixFormat
from gpu_mem_calculator.run.weights.shards import ServerShard, ShardedParameter, held
from gpu_mem_calculator.serving.vllm.weights import loaded_format
from tests.serving.vllm_runs import arch

MATRIX = ShardedParameter("model.layers.0.self_attn.q_proj.weight", (4096, 2048), "linear", 0)
EXPERT = ShardedParameter(
    "model.layers.0.mlp.experts.down_proj", (8, 2048, 1024), "expert", 0, "experts"
)
N = 4096 * 2048


def checkpoint(model: Arch, weight_format: WeightFormat, bits: int = 16) -> int:
    """Bytes of the whole model in a format."""
    full_shard = ServerShard(places=range(len(model.layers)))
    return sum(
        size
        for parameter in held(model, full_shard)
        for _, size in weight_format.stored(parameter, bits)
    )


def gptq(bits: int, group: int) -> dict[str, Any]:
    """A quantization_config of AutoGPTQ."""
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": True}


def compressed(weights: dict[str, Any], **rest: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with one group."""
    return {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head"],
        **rest,
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    }


def test_plain_weights_take_their_bits() -> None:
    """Unquantized weights take 16 or 32 bits."""
    assert find_format("none").stored(MATRIX, 16) == (("", 2 * N),)
    assert find_format("none").stored(MATRIX, 32) == (("", 4 * N),)


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("fp8", {"": N, "scales": 4096 * 4}),
        ("int8", {"": N, "scales": 4096 * 4}),
        ("int4", {"": N // 2, "scales": 4096 * 16 * 2, "constants": 16}),
        ("awq", {"": N // 2, "scales": 4096 * 16 * 2, "zeros": 4096 * 16 // 2}),
        (
            "gptq_int4",
            {"": N // 2, "scales": 4096 * 16 * 2, "zeros": 4096 * 16 // 2, "order": 2048 * 4},
        ),
        ("gptq_int8", {"": N, "scales": 4096 * 16 * 2, "zeros": 4096 * 16, "order": 2048 * 4}),
        ("nf4", {"": N // 2, "scales": N // 64 + N // 64 // 256 * 4, "constants": 68}),
        ("nvfp4", {"": N // 2, "scales": N // 16, "constants": 8}),
    ],
)
def test_a_matrix_becomes_what_its_format_stores(name: str, tensors: dict[str, int]) -> None:
    """The tensors of a matrix of 4096 outputs by 2048 inputs."""
    assert dict(find_format(name).stored(MATRIX, 16)) == tensors


def test_mxfp4_packs_experts_alone() -> None:
    """Experts take half a byte, and a scale for 32 elements."""
    assert dict(find_format("mxfp4").stored(EXPERT, 16)) == {"": 8 * 2**20, "scales": 8 * 2**16}
    assert find_format("mxfp4").stored(MATRIX, 16) == (("", 2 * N),)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"none"}))
def test_embeddings_heads_norms_routers_and_biases_stay_as_they_are(name: str) -> None:
    """They have 16 bits in every format."""
    for role, shape in (
        ("embedding", (1000, 64)),
        ("head", (1000, 64)),
        ("norm", (64,)),
        ("router", (8, 64)),
        ("other", (4, 1, 64)),
    ):
        one = ShardedParameter("x.weight", shape, role)
        assert find_format(name).stored(one, 16) == (("", 2 * one.numel),)


# Sizes in GB on the pages of TheBloke's checkpoints (Llama-2-7B-32K-Instruct-GPTQ, MythoMax-L2-13B,
# LlamaGuard-7B-AWQ, LLaMA2-13B-Tiefighter-AWQ, Mistral-7B-v0.1-AWQ, Upstage-Llama-2-70B-AWQ,
# TinyLlama-1.1B-Chat-v1.0-AWQ); GPTQ files also have biases of zeros (0.1 %).
PUBLISHED: list[tuple[str, dict[str, Any], float]] = [
    ("llama2-7b", gptq(4, 128), 3.90),
    ("llama2-7b", gptq(8, -1), 7.01),
    ("llama2-7b", gptq(8, 128), 7.16),
    ("llama2-13b", gptq(4, 128), 7.26),
    ("llama2-13b", gptq(8, -1), 13.36),
    ("llama2-13b", gptq(8, 128), 13.65),
    ("llama2-7b", {"quant_method": "awq"}, 3.89),
    ("llama2-13b", {"quant_method": "awq"}, 7.25),
    ("mistral-7b-v0.1", {"quant_method": "awq"}, 4.15),
    ("llama2-70b", {"quant_method": "awq"}, 36.61),
    ("tinyllama-1.1b", {"quant_method": "awq"}, 0.77),
]


@pytest.mark.parametrize(("name", "config", "gb"), PUBLISHED)
def test_published_checkpoints_have_the_size_on_their_pages(
    name: str, config: dict[str, Any], gb: float
) -> None:
    """Sizes agree to the last printed digit, and 0.1 % for biases."""
    size = checkpoint(arch(name), find_format("none", config)) / 1e9
    assert size == pytest.approx(gb, abs=0.005 + 0.001 * gb)


def test_gpt_oss_is_exact_to_the_byte() -> None:
    """The size is `total_size` of openai/gpt-oss-20b's model.safetensors.index.json."""
    assert checkpoint(arch("gpt-oss-20b"), find_format("mxfp4")) == 13_761_264_768


def test_deepseek_has_a_scale_for_each_block() -> None:
    """Blocks are 128 x 128, with scales in fp32; partial blocks have one too."""
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
    odd = ShardedParameter(
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", (576, 7168), "linear", 0
    )
    sizes = dict(find_format("fp8", config).stored(odd, 16))
    assert sizes == {"": 576 * 7168, "scales": 5 * 56 * 4}
    assert find_format("fp8", None, "deepseek_v3").stored(odd, 16) == tuple(sizes.items())


def test_static_activations_bring_a_scale_for_the_input() -> None:
    """Per-tensor FP8 has one scale, or two."""
    dynamic = find_format("none", {"quant_method": "fp8", "activation_scheme": "dynamic"})
    static = find_format("none", {"quant_method": "fp8", "activation_scheme": "static"})
    assert dict(dynamic.stored(MATRIX, 16)) == {"": N, "scales": 4}
    assert dict(static.stored(MATRIX, 16)) == {"": N, "scales": 4, "constants": 4}


def test_compressed_tensors_go_by_width_and_strategy() -> None:
    """FP8 and INT8 have scales by row, INT4 by group, and NVFP4 by 16."""
    row = {"num_bits": 8, "type": "float", "strategy": "channel"}
    assert dict(find_format("fp8", compressed(row)).stored(MATRIX, 16))["scales"] == 4096 * 4
    w8a8 = find_format("int8", compressed({"num_bits": 8, "type": "int", "strategy": "channel"}))
    assert dict(w8a8.stored(MATRIX, 16)) == {"": N, "scales": 4096 * 4}
    group = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    assert (
        dict(find_format("int4", compressed(group)).stored(MATRIX, 16))["scales"] == 4096 * 64 * 2
    )
    fp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    assert find_format("none", compressed(fp4)).name == "nvfp4"


def test_kimi_packs_its_routed_experts_alone() -> None:
    """Kimi-K2-Thinking's ignore list has patterns for everything else."""
    ignore = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ]
    group = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    weight_format = find_format("none", compressed(group, ignore=ignore))
    model = arch("kimi-k2")
    two_layers = ServerShard(places=range(2))
    packed = {one.name for one in held(model, two_layers) if weight_format.packs(one)}
    assert packed == {
        "model.layers.1.mlp.experts.gate_up_proj",
        "model.layers.1.mlp.experts.down_proj",
    }


def test_modules_that_are_not_converted_are_found_by_name_part_or_pattern() -> None:
    """An entry is a name, a parent, a part of a name, or has a star."""
    for skip in (
        "model.layers.0.self_attn.q_proj",
        "model.layers.0",
        "self_attn",
        "model.layers.*.self_attn",
        "re:.*q_proj$",
    ):
        weight_format = find_format(
            "none", {"quant_method": "fp8", "modules_to_not_convert": [skip]}
        )
        assert not weight_format.packs(MATRIX)
    other = find_format(
        "none", {"quant_method": "fp8", "ignored_layers": ["model.layers.1", "proj"]}
    )
    assert other.packs(MATRIX)


def test_bitsandbytes_by_its_flags() -> None:
    """4 bits with and without double quantization, and 8 bits, are read."""
    four = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert dict(find_format("nf4", four).stored(MATRIX, 16))["scales"] == N // 64 * 4
    double = find_format("nf4", {**four, "bnb_4bit_use_double_quant": True})
    assert double.stored(MATRIX, 16) == find_format("nf4").stored(MATRIX, 16)
    eight = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    assert find_format("int8", eight).stored(MATRIX, 16) == find_format("int8").stored(MATRIX, 16)


def test_modelopt_is_read_in_both_its_forms() -> None:
    """quantization_config and hf_quant_config.json are both read."""
    flat = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    nested = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    assert find_format("nvfp4", flat).name == "nvfp4"
    assert find_format("fp8", nested).skip == ("lm_head",)


def test_a_quantized_head_is_packed_where_the_config_says_so() -> None:
    """GPTQ's lm_head decides."""
    head = ShardedParameter("lm_head.weight", (1024, 2048), "head")
    assert find_format("none", {**gptq(4, 128), "lm_head": True}).packs(head)
    assert not find_format("none", gptq(4, 128)).packs(head)


@pytest.mark.parametrize(
    ("name", "config", "sentence"),
    [
        ("gptq_int4", {"quant_method": "awq"}, "the model's own quantization_config says 'awq'"),
        ("fp4", None, "is not a known format; use one of none, fp8"),
        ("q4_k_m", None, "is a type of GGUF files"),
        ("none", {"quant_method": "quip"}, "quant_method='quip' is not modelled"),
        ("none", {"quant_method": "modelopt", "quant_algo": "W4A8"}, "'W4A8' is not modelled"),
    ],
)
def test_what_is_unknown_or_contradicts_the_checkpoint_is_refused(
    name: str, config: dict[str, Any] | None, sentence: str
) -> None:
    """The refusal is one sentence."""
    with pytest.raises(FormatError, match=sentence):
        find_format(name, config)


def test_a_name_that_says_less_than_the_checkpoint_is_taken() -> None:
    """int4 is accepted for an AWQ checkpoint."""
    assert find_format("int4", {"quant_method": "awq"}).name == "awq"


def test_vllm_drops_what_its_kernels_do_not_read() -> None:
    """Symmetric GPTQ has no zero points, and an order only if inputs are permuted."""
    version, hopper = (0, 11, 0), "9.0"
    plain = loaded_format(find_format("gptq_int4"), version, hopper).stored(MATRIX, 16)
    assert dict(plain) == {"": N // 2, "scales": 4096 * 16 * 2}
    sorted_ = loaded_format(find_format("none", gptq(4, 128)), version, hopper).stored(MATRIX, 16)
    assert dict(sorted_)["order"] == 2048 * 8
    nf4 = dict(loaded_format(find_format("nf4"), version, hopper).stored(MATRIX, 16))
    assert nf4["scales"] == N // 64 * 4


def test_vllm_pads_experts_for_its_kernels() -> None:
    """MXFP4 on Ampere (Marlin), Hopper (a second copy of the scales, then one) and Blackwell."""
    gate = ShardedParameter("m.experts.gate_up_proj", (32, 2880, 5760), "expert", 0, "experts", 1)
    weight_format = find_format("mxfp4")
    marlin = dict(loaded_format(weight_format, (0, 11, 0), "8.0").stored(gate, 16))
    assert marlin[""] == 32 * 3072 * 5888 // 2
    triton = dict(loaded_format(weight_format, (0, 11, 0), "9.0").stored(gate, 16))
    assert triton["swizzled scales"] == 32 * 5888 * 90
    assert triton["scales"] == 32 * 5760 * 90
    freed = dict(loaded_format(weight_format, (0, 25, 0), "9.0").stored(gate, 16))
    assert freed["scales"] == 32 * 5888 * 90
    blackwell = loaded_format(weight_format, (0, 11, 0), "10.0")
    bias = ShardedParameter("m.experts.gate_up_proj_bias", (32, 5760), "other", 0, "experts")
    assert blackwell.stored(bias, 16) == (("", 32 * 6144 * 4),)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": "x"},
        {"quant_method": "awq", "bits": 0},
        {"quant_method": "fp8", "weight_block_size": "x"},
        {"quant_method": "fp8", "modules_to_not_convert": 5},
        {"quant_method": "compressed-tensors", "config_groups": 5},
    ],
)
def test_a_config_with_junk_is_a_sentence(config: dict[str, Any]) -> None:
    """A malformed quantization_config is refused with one sentence."""
    with pytest.raises(FormatError, match="quantization_config"):
        find_format("none", config, "llama")


def test_scales_are_not_rounded_up_unless_a_format_says_so() -> None:
    """Three blocks by five have 15 scales; in multiples of 2 they have 24."""
    plain = MatrixFormat(bits=8, rows=128, columns=128)
    assert plain.stored(1, 384, 640) == (("", 384 * 640), ("scales", 15 * 4))
    padded = replace(plain, scale_rows=2, scale_columns=2)
    assert padded.stored(1, 384, 640)[1] == ("scales", 24 * 4)
