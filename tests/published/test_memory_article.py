"""The figures of the memory-consumption article: weights, optimizer, gradients, activations, ZeRO.

Its "GB" are 2**30 bytes, but for the ZeRO paper's, which are 10**9.
"""

import pytest

from gpu_mem_calculator.estimates.published.formulas import (
    adam_state_bytes,
    kv_cache_bytes,
    layer_activation_bytes,
    parameter_bytes,
    zero_communication_volume,
    zero_model_states,
)

GIB = 2**30
MIXTRAL_8X22B = 141e9


def test_weights_of_llama_3_70b() -> None:
    """70e9 parameters of 16 bits take 130.4 GiB, exactly 140e9 bytes."""
    assert parameter_bytes(70e9, 16) == 140_000_000_000
    assert round(parameter_bytes(70e9, 16) / GIB, 1) == 130.4


def test_adam_states_of_mixtral() -> None:
    """Momentum and variance are 282e9 numbers of 4 bytes."""
    assert round(adam_state_bytes(MIXTRAL_8X22B) / GIB, 2) == 1050.53
    assert adam_state_bytes(MIXTRAL_8X22B) == parameter_bytes(282e9, 32)


def test_master_copy_of_mixtral() -> None:
    """The optimizer's fp32 copy of the weights takes 525.27 GiB."""
    assert round(parameter_bytes(MIXTRAL_8X22B, 32) / GIB, 2) == 525.27
    copy = adam_state_bytes(MIXTRAL_8X22B, master_copy=True) - adam_state_bytes(MIXTRAL_8X22B)
    assert copy == parameter_bytes(MIXTRAL_8X22B, 32)


def test_gradients_of_mixtral() -> None:
    """16-bit gradients take 262.63 GiB."""
    assert round(parameter_bytes(MIXTRAL_8X22B, 16) / GIB, 2) == 262.63


def test_activations_of_a_layer() -> None:
    """Training keeps 34sbh + 5as²b of a layer, inference 32sbh + 4as²b."""
    s, b, h, a = 512, 8, 8192, 64
    training = layer_activation_bytes(s, b, h, a)
    inference = layer_activation_bytes(s, b, h, a, training=False)
    assert training == 34 * s * b * h + 5 * a * s**2 * b == 1_811_939_328
    assert inference == 32 * s * b * h + 4 * a * s**2 * b == 1_610_612_736


@pytest.mark.parametrize(
    ("params", "hidden", "heads", "layers", "weights", "optimizer", "activations"),
    [
        (104e9, 12288, 96, 64, 193.72, 1356.01, 323.84),
        (141e9, 6144, 48, 56, 262.63, 1838.43, 141.68),
        (70.6e9, 8192, 64, 80, 131.5, 920.52, 270.4),
    ],
    ids=["command-r-plus", "mixtral-8x22b", "llama-3-70b"],
)
def test_training_table(
    params: float,
    hidden: int,
    heads: int,
    layers: int,
    weights: float,
    optimizer: float,
    activations: float,
) -> None:
    """The article's training table (512 tokens, batch 8) follows, its doubling included.

    Its optimizer column is 12P + 2P of gradients. Its activation column multiplies the formula by
    two "for FP16", although the coefficients are bytes at 16 bits already, and rounds each layer
    before it adds them; the true figure is half.
    """
    layer = layer_activation_bytes(512, 8, hidden, heads)
    gradients = parameter_bytes(params, 16)
    assert round(parameter_bytes(params, 16) / GIB, 2) == weights
    with_gradients = adam_state_bytes(params, master_copy=True) + gradients
    assert round(with_gradients / GIB, 2) == optimizer
    assert round(layers * round(2 * layer / GIB, 2), 2) == activations


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages(stage: int, gigabytes: float) -> None:
    """7.5e9 parameters on 64 GPUs, in decimal gigabytes as the picture has them."""
    assert round(zero_model_states(7.5e9, 64, stage) / 1e9, 1) == gigabytes


@pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_communication(stage: int, times: int) -> None:
    """Stages 1 and 2 move what data parallelism moves, 2P; stage 3 moves 3P."""
    assert zero_communication_volume(7.5e9, stage) == times * 7_500_000_000


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "per_token"),
    [(126, 8, 128, 516_096), (80, 8, 128, 327_680), (32, 8, 128, 131_072), (40, 40, 128, 819_200)],
    ids=["llama-3.1-405b", "qwen2.5-72b", "llama-3.1-8b", "opt-13b"],
)
def test_kv_cache_of_a_token(layers: int, kv_heads: int, head_dim: int, per_token: int) -> None:
    """A token's keys and values at 16 bits (DeepSeek-V3 at ISCA 2025 Table 1; vLLM section 3)."""
    assert kv_cache_bytes(1, layers, kv_heads, head_dim) == per_token


def test_fraction_of_a_parameter_is_refused() -> None:
    """A count that is not whole is an error in one sentence."""
    with pytest.raises(ValueError, match=r"num_parameters=0\.5 is not a whole number"):
        parameter_bytes(0.5, 16)


def test_odd_bits_round_up_to_a_byte() -> None:
    """Three 4-bit numbers take two bytes."""
    assert parameter_bytes(3, 4) == 2


def test_the_kv_cache_grows_with_its_tokens() -> None:
    """100 tokens of 2 layers with 3 heads of 8: keys and values of 2 bytes; no token, nothing."""
    assert kv_cache_bytes(100, 2, 3, 8) == 2 * 100 * 2 * 3 * 8 * 2
    assert kv_cache_bytes(100, 2, 3, 8, bits=8) == 2 * 100 * 2 * 3 * 8
    assert kv_cache_bytes(0, 2, 3, 8) == 0
