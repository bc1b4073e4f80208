"""What GPT-2 to Llama 4 say beside their shapes: whole counts, windows, experts, errors."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.arch.blocks import Attention, Moe, StateSpace
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.models.families.config import Config, ConfigError
from tests.models.families.test_shapes import CASES

FAMILIES = sorted({case["model_type"] for case in CASES.values()} | {"baichuan"})
BAD = (0, -1, 2.5, 7, "x", [], [1], {}, {"a": 1}, True, None)


def attention(arch: Arch, index: int = 0) -> Attention:
    """The attention of one layer."""
    mixer = arch.layers[index].mixer
    assert isinstance(mixer, Attention)
    return mixer


@pytest.mark.parametrize(
    ("config", "count"),
    [
        # Baichuan 2 (arXiv 2309.10305), parameter counts of the published checkpoints
        ({"model_type": "baichuan"}, 7_505_973_248),
        (
            {
                "model_type": "baichuan",
                "hidden_size": 5120,
                "intermediate_size": 13696,
                "num_hidden_layers": 40,
                "num_attention_heads": 40,
            },
            13_896_668_160,
        ),
        # facebook/opt-350m and bigscience/bloom, counts of the published checkpoints
        (
            {
                "model_type": "opt",
                "hidden_size": 1024,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "ffn_dim": 4096,
                "word_embed_proj_dim": 512,
                "do_layer_norm_before": False,
            },
            331_196_416,
        ),
        (
            {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112},
            176_247_271_424,
        ),
    ],
)
def test_published_models_have_their_published_count(config: dict[str, Any], count: int) -> None:
    """Full-size models come out to the last parameter."""
    assert read_config(config).num_parameters == count


def test_baichuan_13b_is_alibi_and_7b_rotary() -> None:
    """The two sizes share a model_type but not their positions."""
    small = attention(read_config({"model_type": "baichuan"}))
    large = attention(read_config({"model_type": "baichuan", "hidden_size": 5120}))
    assert (small.rotary_dim, small.alibi) == (128, False)
    assert (large.rotary_dim, large.alibi) == (0, True)


def test_gpt_neo_windows_follow_its_attention_types() -> None:
    """Local layers have the window, global ones none."""
    assert read_config(CASES["gpt_neo-mixed"]).windows == (8, None, 8)
    assert read_config(CASES["gpt_neo-untied-global"]).windows == ()


def test_gpt_oss_slides_on_every_second_layer_and_has_sinks() -> None:
    """Windows of 128 alternate with full attention."""
    arch = read_config(CASES["gpt_oss-20b"])
    assert arch.windows == (128, None)
    assert attention(arch).sinks


def test_cohere2_rotates_only_where_it_slides() -> None:
    """Full layers have no positions."""
    arch = read_config(CASES["cohere2-pattern"])
    assert arch.windows == (4096, None, 4096)
    assert [attention(arch, i).rotary_dim for i in range(3)] == [32, 0, 32]


def test_a_null_window_switches_sliding_off() -> None:
    """sliding_window: null is not the default of 4096."""
    assert read_config(CASES["cohere2-pattern"] | {"sliding_window": None}).windows == ()


def test_llama4_mixes_experts_chunks_and_layers_without_rotary() -> None:
    """Maverick's pattern: experts in every second layer, full attention in every fourth."""
    arch = read_config(CASES["llama4_text-maverick"])
    assert [isinstance(layer.mlp, Moe) for layer in arch.layers] == [False, True] * 2
    assert [attention(arch, i).rotary_dim for i in range(4)] == [16, 16, 16, 0]
    assert [len(attention(arch, i).norms) for i in range(4)] == [2, 2, 2, 0]
    assert arch.windows == (8192, 8192, 8192, None)


def test_jamba_follows_both_periods() -> None:
    """Attention at every third layer from 0, experts at every third from 2."""
    arch = read_config(CASES["jamba-periods"])
    assert [isinstance(layer.mixer, StateSpace) for layer in arch.layers] == [False, True, True] * 2
    assert [isinstance(layer.mlp, Moe) for layer in arch.layers] == [False, False, True] * 2


def test_falcon_counts_key_value_heads_by_architecture() -> None:
    """Multi-query has one, the new architecture its own count, the rest all."""
    names = ("falcon-7b", "falcon-40b", "falcon-rw-alibi-bias")
    assert [attention(read_config(CASES[name])).kv_heads for name in names] == [1, 4, 8]


def test_t5_has_two_stacks_of_layers() -> None:
    """Layers are named by stack; only the decoder's read the encoder."""
    arch = read_config(CASES["t5-uneven"])
    stacks = ["encoder.block.0", "encoder.block.1", "encoder.block.2", "decoder.block.0"]
    assert list(arch.layer_names) == stacks
    assert [layer.kind for layer in arch.layers] == ["encoder"] * 3 + ["decoder"]
    assert not arch.trains


class WatchedConfig(dict[str, Any]):
    """A config.json that remembers which keys were looked for."""

    keys_asked: ClassVar[set[str]] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        self.keys_asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.keys_asked.add(str(key))
        return super().__contains__(key)


def keys_read(config: dict[str, Any]) -> set[str]:
    """The keys of a config.json that its family looks for, and those that it has."""

    def watch(self: Config, data: dict[str, Any], read: Any = None) -> None:
        self.data, self.read = WatchedConfig(data), read

    WatchedConfig.keys_asked.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, "__init__", watch)
        read_config(WatchedConfig(config))
    return (WatchedConfig.keys_asked | config.keys()) - {"model_type"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_value_is_a_config_error(family: str) -> None:
    """Any key that the family reads with a wrong value gives one sentence."""
    small = next((c for c in CASES.values() if c["model_type"] == family), {"model_type": family})
    keys = keys_read(small)
    said = []
    places: list[tuple[str, ...]] = [(key,) for key in sorted(keys)]
    for part in ("text_config", "vision_config"):
        places += [(part, key) for key in small.get(part, ()) if key != "model_type"]
    for *part, key in places:
        for value in BAD:
            change = {part[0]: small[part[0]] | {key: value}} if part else {key: value}
            try:
                read_config(small | change)
            except ConfigError as error:
                said.append(str(error))
    assert len(said) > 10
    assert not [sentence for sentence in said if "\n" in sentence]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gptj", "n_head": 0}, "n_head=0 must be a whole number from 1"),
        ({"model_type": "bloom", "n_head": 7}, "7 heads do not divide 64"),
        ({"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["x"], 2]]}, "'local'"),
        ({"model_type": "gpt_neo", "num_layers": 1, "attention_types": [[[[]], 1]]}, "'local'"),
        ({"model_type": "gpt_neo", "attention_types": [[["local"], 10**12]]}, "it gives more"),
        ({"model_type": "gpt_neo", "attention_types": [[[], 10**12]]}, "it gives 0"),
        ({"model_type": "jamba", "attn_layer_offset": 9}, "must be smaller than"),
        ({"model_type": "mamba2", "num_heads": 100}, "must equal num_heads x head_dim"),
        ({"model_type": "granite", "num_key_value_heads": 5}, "5 key-value heads do not divide 32"),
        ({"model_type": "olmoe", "num_experts_per_tok": 65}, "65 is more than 64 experts"),
        ({"model_type": "t5", "feed_forward_proj": "gated-gelu-x"}, "feed_forward_proj"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "it must list all 48 layers"),
    ],
)
def test_an_error_names_the_value_and_the_rule(config: dict[str, Any], said: str) -> None:
    """The sentence says what was wrong."""
    with pytest.raises(ConfigError, match=said):
        read_config(config)
