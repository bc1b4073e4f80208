"""Bytes of the cache of one token and of one sequence, by hand and as published."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.run.weights.shards import ServerShard
from gpu_mem_calculator.training.generation.kv_cache import (
    LayerState,
    cached_states,
    sequence_bytes,
    token_bytes,
    unscaled_row,
)


def arch(name: str) -> Arch:
    """The architecture of a preset."""
    row = catalog.find("index", name)
    assert row is not None, name
    return read_config(catalog.preset_config(row["config"]))


def cache(
    name: str | Arch, *, tp: int = 1, bits: int = 16, state_bits: int = 32
) -> tuple[LayerState, ...]:
    """The cache of one rank, without scales."""
    model = arch(name) if isinstance(name, str) else name
    shard = ServerShard(places=range(len(model.layers)), tp=tp, attention_tp=tp)
    return cached_states(model, shard, unscaled_row(bits), state_bits=state_bits, conv_bits=16)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # printed in papers and by their authors, 16 bits
        ("opt-13b", 819_200),  # PagedAttention paper: 800 KB a token
        ("deepseek-v2", 69_120),  # (512 + 64) x 2 x 60
        ("deepseek-v3", 70_272),  # DeepSeek-V3 hardware paper, table 1: 70.272 KB
        ("qwen2.5-72b", 327_680),  # the same table: 327.680 KB
        ("llama3.1-405b", 516_096),  # the same table: 516.096 KB
        ("llama3.1-8b", 131_072),
        # by hand: 2 x layers x key-value heads x head size x 2
        ("llama2-7b", 2 * 32 * 32 * 128 * 2),
        ("llama3.1-70b", 2 * 80 * 8 * 128 * 2),
        ("llama3.3-70b", 2 * 80 * 8 * 128 * 2),
        ("llama3.2-1b", 2 * 16 * 8 * 64 * 2),
        ("qwen3-0.6b", 2 * 28 * 8 * 128 * 2),
        ("qwen3-30b-a3b", 2 * 48 * 4 * 128 * 2),
        ("qwen3-235b-a22b", 2 * 94 * 4 * 128 * 2),
        ("qwen3-coder-480b-a35b", 2 * 62 * 8 * 128 * 2),
        ("qwen2.5-vl-7b", 2 * 28 * 4 * 128 * 2),
        ("mistral-nemo-12b", 2 * 40 * 8 * 128 * 2),
        ("mistral-small-3.1-24b", 2 * 40 * 8 * 128 * 2),
        ("mistral-large-123b", 2 * 88 * 8 * 128 * 2),
        ("mixtral-8x22b", 2 * 56 * 8 * 128 * 2),
        ("phi-4", 2 * 40 * 10 * 128 * 2),
        ("falcon-7b", 2 * 32 * 1 * 64 * 2),  # one key-value head for all
        ("starcoder", 2 * 40 * 1 * 128 * 2),
        ("glm-4.5-air", 2 * 46 * 8 * 128 * 2),
        ("minimax-m2", 2 * 62 * 8 * 128 * 2),
        ("seed-oss-36b", 2 * 64 * 8 * 128 * 2),
        ("smollm3-3b", 2 * 36 * 4 * 128 * 2),
        ("ernie-4.5-21b-a3b", 2 * 28 * 4 * 128 * 2),
        ("hunyuan-a13b", 2 * 32 * 8 * 128 * 2),
        ("dbrx", 2 * 40 * 8 * 128 * 2),
        ("qwen-7b", 2 * 32 * 32 * 128 * 2),
        # latents: (rank + rotary) x 2 x layers, and 128 of an indexer
        ("kimi-k2", (512 + 64) * 2 * 61),
        ("glm-4.7-flash", (512 + 64) * 2 * 47),
        ("deepseek-v3.2", (512 + 64 + 128) * 2 * 61),
        ("glm-5", (512 + 64 + 128) * 2 * 78),
        ("glm-5.2", (512 + 64) * 2 * 78 + 128 * 2 * 21),  # four layers share an indexer
        ("longcat-flash", (512 + 64) * 2 * 28 * 2),  # two attentions a layer
        # only some layers grow
        ("qwen3-next-80b-a3b", 2 * 12 * 2 * 256 * 2),
        ("qwen3.5-27b", 2 * 16 * 4 * 256 * 2),
        ("kimi-linear-48b-a3b", (512 + 64) * 2 * 7),
        ("minimax-text-01", 2 * 10 * 8 * 128 * 2),
        ("jamba-v0.1", 2 * 4 * 8 * 128 * 2),
        ("nemotron-3-nano-30b-a3b", 2 * 6 * 2 * 128 * 2),
        ("nemotron-h-56b", 2 * 10 * 8 * 128 * 2),
        ("granite-4.0-h-small", 2 * 4 * 8 * 128 * 2),
        ("lfm2-1.2b", 2 * 6 * 8 * 64 * 2),
        ("falcon-h1-7b", 2 * 44 * 2 * 128 * 2),
        ("zamba2-1.2b", 2 * 6 * 32 * 128 * 2),
        ("nemotron-super-49b", 2 * 49 * 8 * 128 * 2),
        ("nemotron-ultra-253b", 2 * 64 * 8 * 128 * 2),
        ("mamba-2.8b", 0),
        ("llada-8b", 0),
        # windows are full, the other layers grow
        ("gemma3-27b", 2 * 10 * 16 * 128 * 2),
        ("gemma4-31b", 2 * 10 * 4 * 512 * 2),
        ("gpt-oss-120b", 2 * 18 * 8 * 64 * 2),
        ("llama4-scout", 2 * 12 * 8 * 128 * 2),
        ("mimo-v2-flash", 9 * 4 * (192 + 128) * 2),  # values are smaller than keys
        ("exaone-4.0-32b", 2 * 16 * 8 * 128 * 2),
        # the last 15 of 35 layers read earlier keys; one in five of the first 20 is not windowed
        ("gemma3n-e4b", 2 * 4 * 2 * 256 * 2),
        # decoders that read an encoder: their own keys
        ("whisper-large-v3", 2 * 32 * 20 * 64 * 2),
        ("bart-large", 2 * 12 * 16 * 64 * 2),
        ("llama3.2-11b-vision", 2 * 32 * 8 * 128 * 2),
    ],
)
def test_one_more_token_of_a_long_sequence(name: str, expected: int) -> None:
    """Bytes that a token adds in 16 bits, over the whole model."""
    assert token_bytes(cache(name)) == expected


def test_every_preset_has_a_cache() -> None:
    """A sequence's bytes are never negative, and longer sequences take no fewer."""
    for row in catalog.rows("index"):
        caches = cache(read_config(catalog.preset_config(row["config"])))
        assert 0 <= sequence_bytes(caches, 1) <= sequence_bytes(caches, 5000), row["name"]


def states(caches: tuple[LayerState, ...]) -> int:
    """Bytes of a sequence that do not depend on its length, without cross-attention."""
    return sum(one.state_bytes * len(one.places) for one in caches)


@pytest.mark.parametrize(
    ("name", "layers", "scanned", "inputs"),
    [
        # layers with a state, elements of the state (fp32), inputs of the convolution (16 bits)
        ("mamba-2.8b", 64, 5120 * 16, 5120 * 3),
        ("falcon-mamba-7b", 64, 8192 * 16, 8192 * 3),
        ("codestral-mamba-7b", 64, 128 * 64 * 128, (8192 + 2 * 8 * 128) * 3),
        ("jamba-v0.1", 28, 8192 * 16, 8192 * 3),
        ("bamba-9b", 29, 128 * 64 * 128, (8192 + 2 * 128) * 3),
        ("granite-4.0-h-small", 36, 128 * 64 * 128, (8192 + 2 * 128) * 3),
        ("nemotron-3-nano-30b-a3b", 23, 64 * 64 * 128, (4096 + 2 * 8 * 128) * 3),
        ("falcon-h1-0.5b", 36, 24 * 64 * 128, (1536 + 2 * 128) * 3),
        ("zamba2-1.2b", 38, 64 * 64 * 128, (4096 + 2 * 128) * 3),
        ("qwen3-next-80b-a3b", 36, 32 * 128 * 128, (2 * 16 * 128 + 32 * 128) * 3),
        ("qwen3.5-27b", 48, 48 * 128 * 128, (2 * 16 * 128 + 48 * 128) * 3),
        ("kimi-linear-48b-a3b", 20, 32 * 128 * 128, 3 * 32 * 128 * 3),
        ("minimax-text-01", 70, 64 * 128 * 128, 0),
        ("lfm2-1.2b", 10, 0, 2048 * 2),
    ],
)
def test_a_state_is_as_large_as_its_matrices(
    name: str, layers: int, scanned: int, inputs: int
) -> None:
    """The state of a sequence, by hand from the sizes of its heads."""
    assert states(cache(name)) == layers * (scanned * 4 + inputs * 2)


def test_a_window_keeps_its_last_tokens() -> None:
    """Gemma 3 27B: 52 layers keep 1024 tokens, 10 keep all."""
    caches = cache("gemma3-27b")
    token = 2 * 16 * 128 * 2
    assert sequence_bytes(caches, 10_000) == token * (10 * 10_000 + 52 * 1024)
    assert sequence_bytes(caches, 500) == token * 62 * 500


def test_cross_attention_keeps_the_encoder_once() -> None:
    """Whisper's decoder caches 1500 frames for any text; its encoder caches nothing."""
    caches = cache("whisper-large-v3")
    cross = 2 * 32 * 20 * 64 * 2 * 1500
    assert sequence_bytes(caches, 0) == cross
    assert sequence_bytes(caches, 448) == cross + 448 * 163_840


def test_a_picture_is_kept_by_the_layers_that_read_it() -> None:
    """Llama 3.2 Vision: 8 of 40 layers keep 4 tiles of 1601 tokens."""
    caches = cache("llama3.2-11b-vision")
    assert sequence_bytes(caches, 0) == 8 * 2 * 8 * 128 * 2 * 4 * 1601


@pytest.mark.parametrize(
    ("name", "tp", "expected"),
    [
        ("llama3.1-70b", 4, 2 * 80 * 2 * 128 * 2),
        ("llama3.1-70b", 16, 2 * 80 * 1 * 128 * 2),  # a head is replicated, not sharded
        ("qwen3-235b-a22b", 8, 2 * 94 * 1 * 128 * 2),
        ("deepseek-v3", 8, 70_272),  # a latent is whole on every rank
        ("deepseek-v3.2", 8, (512 + 64 + 128) * 2 * 61),
        ("falcon-7b", 1, 2 * 32 * 1 * 64 * 2),
    ],
)
def test_tensor_parallel_ranks_shard_heads_and_not_latents(
    name: str, tp: int, expected: int
) -> None:
    """Bytes of a token on one rank."""
    assert token_bytes(cache(name, tp=tp)) == expected


def test_states_are_sharded_with_their_heads_and_groups_replicated() -> None:
    """Nemotron 3's 8 groups are sharded over 8 ranks; Granite's one group is on each of them."""
    nano = states(cache("nemotron-3-nano-30b-a3b", tp=8))
    assert nano == 23 * (64 * 64 * 128 // 8 * 4 + (4096 + 2 * 8 * 128) // 8 * 3 * 2)
    granite = states(cache("granite-4.0-h-small", tp=8))
    assert granite == 36 * (128 * 64 * 128 // 8 * 4 + (8192 // 8 + 2 * 128) * 3 * 2)


def test_fewer_bits_keep_fewer_bytes() -> None:
    """An 8-bit cache is half as large; states stay as they are."""
    assert token_bytes(cache("llama3.1-8b", bits=8)) == 65_536
    assert token_bytes(cache("deepseek-v3", bits=8)) == 35_136
    assert states(cache("qwen3-next-80b-a3b", bits=8)) == states(cache("qwen3-next-80b-a3b"))


def test_a_layer_that_reads_earlier_keys_keeps_none() -> None:
    """Gemma 3n: 16 windowed and 4 full layers keep keys, 15 of 35 layers none."""
    layers = {one.kind: len(one.places) for one in cache("gemma3n-e4b")}
    assert layers == {"window": 16, "full": 4}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # a config.json of the hub, nested, and the same sizes flat
        (
            {
                "model_type": "gemma3",
                "text_config": {
                    "num_hidden_layers": 6,
                    "head_dim": 64,
                    "num_attention_heads": 8,
                    "num_key_value_heads": 4,
                },
            },
            2 * 1 * 4 * 64 * 2,
        ),
        (
            {
                "model_type": "gemma3",
                "num_hidden_layers": 6,
                "head_dim": 64,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
            },
            2 * 1 * 4 * 64 * 2,
        ),
        ({"model_type": "deepseek_v32", "num_hidden_layers": 1}, (512 + 64 + 128) * 2),
    ],
)
def test_a_config_is_enough(config: dict[str, Any], expected: int) -> None:
    """No preset is needed."""
    assert token_bytes(cache(read_config(config))) == expected
