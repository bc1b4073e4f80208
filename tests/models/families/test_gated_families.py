"""What Mistral to DeepSeek say beside their shapes: whole counts, windows, experts, errors."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.models.arch.blocks import Attention, LatentAttention, Moe
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.models.families.config import ConfigError
from tests.models.families.test_shapes import CASES, shapes

CHATGLM3 = {
    "model_type": "chatglm",
    "num_layers": 28,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "ffn_hidden_size": 13696,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "padded_vocab_size": 65024,
    "add_qkv_bias": True,
    "add_bias_linear": False,
    "rmsnorm": True,
    "post_layer_norm": True,
    "seq_length": 8192,
}
GLM4_9B = CHATGLM3 | {"num_layers": 40, "padded_vocab_size": 151552, "seq_length": 131072}
DEEPSEEK_MOE = {
    "model_type": "deepseek",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "max_position_embeddings": 4096,
}
KIMI_K2 = {
    "model_type": "kimi_k2",
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        # Totals of the published checkpoints: THUDM/chatglm3-6b, THUDM/glm-4-9b,
        # deepseek-ai/deepseek-moe-16b-base (safetensors index of each).
        (CHATGLM3, 6_243_584_000),
        (GLM4_9B, 9_399_951_360),
        (DEEPSEEK_MOE, 16_375_728_128),
        # Whole models that transformers 5.17.0 builds on the meta device.
        ({"model_type": "mixtral"}, 46_702_792_704),
        ({"model_type": "qwen2_moe"}, 14_315_784_192),
        ({"model_type": "qwen3_moe"}, 15_350_731_776),
        ({"model_type": "phimoe"}, 41_872_793_600),
        ({"model_type": "glm4_moe"}, 103_481_200_640),
        ({"model_type": "deepseek_v2", "num_experts_per_tok": 6}, 38_612_307_968),
        ({"model_type": "deepseek_v3"}, 671_026_404_352),
        (KIMI_K2, 1_026_408_209_408),
    ],
)
def test_whole_models_have_their_count(config: dict[str, Any], count: int) -> None:
    """A model at full size has exactly its published number of parameters."""
    assert read_config(config).num_parameters == count


def test_deepseek_v3_checkpoint_adds_up() -> None:
    """Main model, MTP module and routing biases are the 684,489,845,504 published elements.

    deepseek-ai/DeepSeek-V3 publishes 680,571,043,840 fp8 and 3,918,786,560 bf16 elements, and
    256 fp32 routing biases on each of 59 layers (58 here, one in the MTP module).
    """
    arch = read_config({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
    biases = 256 * sum(b.name.endswith("e_score_correction_bias") for b in arch.buffers)
    assert arch.num_parameters + arch.mtp_parameters == 680_571_043_840 + 3_918_786_560
    assert biases == 256 * 58


def test_mtp_is_beside_the_model() -> None:
    """A prediction module adds nothing to the model's own parameters."""
    with_module = read_config({"model_type": "glm4_moe", "num_nextn_predict_layers": 1})
    without = read_config({"model_type": "glm4_moe", "num_nextn_predict_layers": 0})
    assert with_module.num_parameters == without.num_parameters
    assert with_module.mtp_parameters > without.mtp_parameters == 0


def test_kimi_k2_reads_as_deepseek_v3() -> None:
    """Kimi K2 has DeepSeek-V3's parameters under the same names."""
    case = CASES["deepseek_v3-query-latent"]
    assert shapes(read_config(case | {"model_type": "kimi_k2"})) == shapes(read_config(case))


def test_chatglm_reads_standard_names_too() -> None:
    """ChatGLM's own keys and transformers' common ones describe the same model."""
    common = {
        "model_type": "chatglm",
        "num_hidden_layers": 28,
        "hidden_size": 4096,
        "head_dim": 128,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "intermediate_size": 13696,
        "vocab_size": 65024,
    }
    assert shapes(read_config(common)) == shapes(read_config(CHATGLM3))


WINDOWS = [
    ({"model_type": "mistral"}, (4096, 4096, 4096)),
    ({"model_type": "mistral", "sliding_window": None}, ()),
    ({"model_type": "mixtral"}, ()),
    ({"model_type": "qwen2", "sliding_window": 8}, ()),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2},
        (None, None, 4096),
    ),
    ({"model_type": "qwen2_moe", "use_sliding_window": True, "sliding_window": 8}, (8, None, 8)),
    ({"model_type": "qwen3_moe", "use_sliding_window": True, "sliding_window": 8}, (8, 8, 8)),
    ({"model_type": "gemma2"}, (4096, None, 4096)),
    (
        {"model_type": "gemma3_text", "sliding_window_pattern": 3, "sliding_window": 512},
        (512, 512, None),
    ),
    (
        {
            "model_type": "gemma3",
            "text_config": {
                "num_hidden_layers": 3,
                "layer_types": ["full_attention"] * 2 + ["sliding_attention"],
            },
        },
        (None, None, 4096),
    ),
    ({"model_type": "phi3", "sliding_window": 2047}, (2047, 2047, 2047)),
]


@pytest.mark.parametrize(("config", "windows"), WINDOWS)
def test_windows(config: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    """Layers slide where the family's pattern says; null switches the window off."""
    assert read_config({"num_hidden_layers": 3} | config).windows == windows


def test_softcaps() -> None:
    """Gemma 2 caps attention at 50 and logits at 30 unless null; Gemma 3 caps neither."""
    arch = read_config({"model_type": "gemma2", "attn_logit_softcapping": None})
    mixer = read_config({"model_type": "gemma2"}).layers[0].mixer
    none = arch.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert isinstance(none, Attention)
    assert (mixer.softcap, none.softcap, arch.logit_softcap) == (50.0, None, 30.0)
    assert read_config({"model_type": "gemma3_text"}).logit_softcap is None


@pytest.mark.parametrize(
    ("config", "rotary"),
    [
        (
            {
                "model_type": "phi",
                "num_attention_heads": 32,
                "hidden_size": 2560,
                "partial_rotary_factor": 0.4,
            },
            32,
        ),
        ({"model_type": "glm4"}, 64),
        ({"model_type": "phi3"}, 96),
        ({"model_type": "qwen3"}, 128),
        (CHATGLM3, 64),
    ],
)
def test_rotary_size(config: dict[str, Any], rotary: int) -> None:
    """Rotary runs over the published share of each head."""
    mixer = read_config(config).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rotary_dim == rotary


def test_experts_per_token_and_shared_width() -> None:
    """DeepSeek-MoE sends a token to 6 of 64 experts and through a shared one of 2 x 1408."""
    layers = read_config(DEEPSEEK_MOE).layers
    moe = layers[1].mlp
    assert layers[0].kind == "dense"
    assert isinstance(moe, Moe)
    assert moe.shared is not None
    assert (moe.num_experts, moe.top_k, moe.ffn, moe.shared.ffn) == (64, 6, 1408, 2816)


def test_null_query_rank_means_one_query_projection() -> None:
    """DeepSeek-V2-Lite's null `q_lora_rank` leaves the query without a latent."""
    mixer = read_config(CASES["deepseek_v2-plain-query"]).layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert (len(mixer.query), mixer.query_norm, mixer.query_rank) == (1, None, 0)


BAD = [0, -1, 1.5, "many", True, [], ["x"], {}, float("nan"), float("inf"), 3, 10**9]


@pytest.mark.parametrize("case", [*CASES, "chatglm", "deepseek"])
def test_bad_values_come_out_as_one_sentence(case: str) -> None:
    """Whatever stands under a key, the config is read or refused in one sentence."""
    config = {"chatglm": CHATGLM3, "deepseek": DEEPSEEK_MOE}.get(case) or CASES[case]
    extra = {"hidden_size", "head_dim", "num_key_value_heads", "rope_parameters", "layer_types"}
    messages = []
    for key in {*config, *extra} - {"model_type", "num_hidden_layers", "num_layers"}:
        for value in BAD:
            try:
                arch = read_config(config | {key: value})
            except ConfigError as error:
                messages.append(str(error))
            else:
                assert all(weight.numel > 0 for weight in arch.weights())
    assert messages
    assert all(text.startswith("model.config") and "\n" not in text for text in messages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 6}, "model.config: 6 heads do not divide 64"),
        ({"num_attention_heads": 0}, "num_attention_heads=0 must be a whole number from 1"),
        ({"num_key_value_heads": 3}, "3 key-value heads do not divide 4"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9 is more than 8 experts"),
    ],
)
def test_what_a_refusal_says(change: dict[str, Any], message: str) -> None:
    """A refusal names the value and the rule it breaks."""
    with pytest.raises(ConfigError, match=message):
        read_config(CASES["mixtral-8-experts"] | change)


def test_deepseek_v2_needs_experts_per_token() -> None:
    """DeepSeek-V2 has no default for the experts a token uses."""
    with pytest.raises(ConfigError, match="num_experts_per_tok"):
        read_config({"model_type": "deepseek_v2"})


def test_first_chatglm_is_refused() -> None:
    """ChatGLM-6B shares the model_type but not the code, so it is not read as ChatGLM2."""
    with pytest.raises(ConfigError, match="inner_hidden_size"):
        read_config({"model_type": "chatglm", "inner_hidden_size": 16384})
