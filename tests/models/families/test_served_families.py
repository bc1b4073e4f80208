"""Families that are served: towers, prediction modules, mixers, and which layers keep what."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.arch.blocks import (
    Attention,
    LatentAttention,
    Moe,
    Recurrence,
    StateSpace,
)
from gpu_mem_calculator.models.families import UnknownFamilyError, read_config
from gpu_mem_calculator.models.families.config import ConfigError
from tests.models.families.test_shapes import CASES


def preset(name: str) -> Arch:
    """The architecture of a preset."""
    row = catalog.find("index", name)
    assert row is not None
    return read_config(catalog.preset_config(row["config"]))


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # every parameter that the hub's safetensors files hold
        ("gemma3-4b-it", 4_300_079_472),
        ("gemma3-27b-it", 27_432_406_640),
        ("qwen2.5-vl-3b", 3_754_622_976),
        ("qwen2.5-vl-7b", 8_292_166_656),
        ("qwen2.5-vl-32b", 33_452_718_336),
        ("qwen2.5-vl-72b", 73_410_777_344),
        ("qwen2-vl-7b", 8_291_375_616),
        ("qwen3-vl-2b", 2_127_532_032),
        ("qwen3-vl-8b", 8_767_123_696),
        ("qwen3-vl-30b-a3b", 31_070_754_032),
        ("llava-1.5-7b", 7_063_427_072),
        ("llava-v1.6-mistral-7b", 7_566_747_648),
        ("pixtral-12b", 12_682_739_712),
        ("mistral-small-3.1-24b", 24_011_361_280),
        ("llama3.2-11b-vision", 10_670_220_835),
        ("llama4-scout-instruct", 108_641_793_536),
        # and of the module that predicts further tokens
        ("qwen3.5-27b", 27_781_427_952),
        ("qwen3.5-35b-a3b", 35_951_822_704),
        ("qwen3.5-122b-a10b", 125_086_497_008),
        ("qwen3.5-397b-a17b", 403_397_928_944),
        ("mimo-7b", 7_833_409_536),
        ("glm-4.7-flash", 31_221_488_576 - 47 * 64),  # 47 x 64 routing biases
        ("glm-5", 753_864_139_008 - 76 * 256),
    ],
)
def test_text_tower_and_prediction_add_up_to_the_checkpoint(name: str, total: int) -> None:
    """Nothing is counted twice, and nothing is left out."""
    arch = preset(name)
    assert arch.num_parameters + arch.tower_parameters + arch.mtp_parameters == total
    assert arch.left_out == ()


def test_a_tower_that_is_not_known_is_said() -> None:
    """Gemma 3n's towers are left out, and a sentence says so."""
    arch = preset("gemma3n-e4b")
    assert arch.tower == ()
    assert "not counted" in arch.left_out[0]


def test_the_text_model_inside_an_unknown_one_is_read() -> None:
    """SmolVLM and the like: the language model is known, the rest is said to be left out."""
    inner = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 300}
    arch = read_config({"model_type": "idefics3", "text_config": inner})
    assert arch.num_parameters == read_config(inner).num_parameters
    assert arch.left_out
    with pytest.raises(UnknownFamilyError, match="model_type='nobody'"):
        read_config({"model_type": "x", "text_config": {"model_type": "nobody"}})


def test_a_flat_config_reads_as_its_nested_form() -> None:
    """Older configs have the text model's keys at the top, and some a short form of the tower."""
    sizes = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    }
    tower = {"layers": 32, "hidden": 1280, "ffn": 3420, "heads": 16, "patch": 14}
    short = read_config({"model_type": "qwen2_5_vl", **sizes, "vision": tower})
    assert (short.num_parameters, short.tower_parameters) == (7_615_616_512, 676_550_144)
    bare = read_config({"model_type": "qwen2_5_vl", **sizes})
    assert (bare.num_parameters, bare.tower_parameters) == (7_615_616_512, 0)
    assert bare.left_out


@pytest.mark.parametrize(
    ("name", "mixers"),
    [
        ("qwen3-next-80b-a3b", {Recurrence: 36, Attention: 12}),
        ("kimi-linear-48b-a3b", {Recurrence: 20, LatentAttention: 7}),
        ("minimax-text-01", {Recurrence: 70, Attention: 10}),
        ("lfm2-8b-a1b", {Recurrence: 18, Attention: 6}),
        ("granite-4.0-h-tiny", {StateSpace: 36, Attention: 4}),
        ("nemotron-nano-9b-v2", {StateSpace: 27, Attention: 4}),
        ("falcon-h1-0.5b", {StateSpace: 36, Attention: 36}),
        ("zamba2-1.2b", {StateSpace: 38, Attention: 6}),
    ],
)
def test_hybrids_have_their_mixers(name: str, mixers: dict[type, int]) -> None:
    """How many layers have which mixer; two in one layer count twice."""
    found: dict[type, int] = {}
    for layer in preset(name).layers:
        for mixer in layer.mixers:
            found[type(mixer)] = found.get(type(mixer), 0) + 1
    assert found == mixers


@pytest.mark.parametrize("layers", [1, 2])
def test_a_prediction_module_of_mimo_is_one_more_layer(layers: int) -> None:
    """However few there are; with three norms and a projection from 2 x hidden."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_nextn_predict_layers": 1}
    arch = read_config({"model_type": "mimo", **sizes, **heads, "num_hidden_layers": layers})
    assert arch.mtp_parameters == arch.layers[-1].num_parameters + 3 * 64 + 2 * 64 * 64


def test_nemotron_nas_leaves_parts_of_layers_out() -> None:
    """Ultra 253B: 64 of 162 layers have attention, 81 an MLP; 8 key-value heads each."""
    arch = preset("nemotron-ultra-253b")
    heads = [layer.mixer.kv_heads for layer in arch.layers if isinstance(layer.mixer, Attention)]
    assert heads == [8] * 64
    assert sum(layer.mlp is not None for layer in arch.layers) == 81
    assert arch.num_parameters == 253_401_268_224


def test_a_shared_block_has_its_weights_once() -> None:
    """Zamba2's transformer block runs in six layers and is stored in the first."""
    arch = preset("zamba2-1.2b")
    named = [w.name for w in arch.weights() if w.name.endswith("self_attn.q_proj.weight")]
    assert named == ["model.layers.5.shared_transformer.self_attn.q_proj.weight"]


def test_an_encoder_and_a_decoder_are_told_apart() -> None:
    """T5, BART and Whisper: only the decoder's layers read the encoder."""
    for case in ("t5-uneven", "bart-small", "whisper-small"):
        for layer in read_config(CASES[case]).layers:
            crosses = [m for m in layer.mixers if isinstance(m, Attention) and m.cross]
            assert len(crosses) == (layer.kind == "decoder")


def test_sliding_layers_may_have_other_heads() -> None:
    """MiMo-V2-Flash: 8 key-value heads and sinks where a layer slides, 4 elsewhere."""
    arch = preset("mimo-v2-flash")
    for layer, window in zip(arch.layers, arch.windows, strict=True):
        assert isinstance(layer.mixer, Attention)
        assert layer.mixer.kv_heads == (4 if window is None else 8)
        assert layer.mixer.sinks == (window is not None)


def test_gemma4_full_layers_have_larger_heads() -> None:
    """Heads of 512 in full layers, of 256 in windowed ones; keys and values share a projection."""
    arch = preset("gemma4-31b")
    full = next(x for x, w in zip(arch.layers, arch.windows, strict=True) if w is None).mixer
    assert isinstance(full, Attention)
    assert (full.head_dim, full.kv_heads, len(full.inputs)) == (512, 4, 2)


def test_longcat_stores_real_experts_only() -> None:
    """Zero-computation experts have a row in the router and no weights: 561 B, not 741."""
    arch = preset("longcat-flash")
    mlp = arch.layers[0].mlp
    assert isinstance(mlp, Moe)
    assert mlp.num_experts == 512
    assert arch.num_parameters == 560_664_958_976


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "must consist of"),
        (
            {"model_type": "granitemoehybrid", "num_hidden_layers": 1, "layer_types": ["conv2"]},
            "holds 'conv2'",
        ),
        ({"model_type": "gemma3", "text_config": 3}, "text_config=3 must be an object"),
        ({"model_type": "llava", "vision_config": {"model_type": "dino"}}, "is not one of"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 30}, "must be below 30"),
        ({"model_type": "deepseek_v32", "q_lora_rank": None, "num_hidden_layers": 1}, None),
        ({"model_type": "falcon_h1", "mamba_n_heads": 7}, "7 mamba heads do not divide 1024"),
    ],
)
def test_what_a_refusal_says(config: dict[str, Any], said: str | None) -> None:
    """The sentence names the value and the rule; a null that has a default is no error."""
    if said is None:
        read_config(config)
    else:
        with pytest.raises(ConfigError, match=said):
            read_config(config)
