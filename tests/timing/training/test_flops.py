"""The FLOPs of MFU are the field's: 6 N + 12 L H Q T for each token."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.flops import (
    mfu,
    mixing_flops,
    model_flops,
    multiplied_weights,
)
from gpu_mem_calculator.tools.read import read


def arch_of(name: str) -> Arch:
    """The architecture of a preset."""
    return resolve(read({"model": {"name": name}}).file).run.arch


def test_llama_counts_every_matrix_but_the_embedding() -> None:
    """meta-llama/Llama-3.1-8B: 32 layers of attention and MLP, and the output layer."""
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
    assert multiplied_weights(arch_of("llama3.1-8b")) == 32 * layer + 128256 * 4096


def test_a_tied_head_counts_although_it_has_no_weight_of_its_own() -> None:
    """GPT-2's logits are a product with the embedding."""
    assert multiplied_weights(arch_of("gpt2")) == 12 * 12 * 768**2 + 50257 * 768


def test_only_experts_that_a_token_is_routed_to_count() -> None:
    """Mixtral: two of eight."""
    layer = 4096 * (2 * 4096 + 2 * 1024) + 4096 * 8 + 2 * 3 * 4096 * 14336
    assert multiplied_weights(arch_of("mixtral-8x7b")) == 32 * layer + 32000 * 4096


def test_attention_counts_every_pair_of_tokens() -> None:
    """12 L H Q T, not halved for the causal mask."""
    assert mixing_flops(arch_of("llama3.1-8b"), 8192) == 12 * 32 * 4096 * 8192


def test_a_window_limits_what_attention_sees() -> None:
    """Mistral 7B v0.1 looks 4,096 tokens back."""
    arch = arch_of("mistral-7b-v0.1")
    assert mixing_flops(arch, 8192) == mixing_flops(arch, 4096) == 12 * 32 * 4096 * 4096


def test_latent_attention_has_keys_and_values_of_different_widths() -> None:
    """DeepSeek-V3: 128 heads with keys of 192 and values of 128 elements."""
    assert mixing_flops(arch_of("deepseek-v3"), 4096) == 61 * 6 * 128 * (192 + 128) * 4096


def test_frozen_weights_have_no_gradient() -> None:
    """4 N instead of 6 N."""
    arch = arch_of("llama3.1-8b")
    trained, frozen = model_flops(arch, 100, 2048), model_flops(arch, 100, 2048, frozen=True)
    assert trained - frozen == 100 * 2 * multiplied_weights(arch)


def test_mfu_is_a_share_of_all_cards() -> None:
    """Half of the FLOPs that two cards could do."""
    assert mfu(3e12, 3.0, 2, 1e12) == pytest.approx(0.5)


def test_the_flops_of_a_large_run_do_not_overflow() -> None:
    """Llama-3.1-405B with 16M tokens a step, in arrays as alone."""
    numpy = pytest.importorskip("numpy")
    arch, tokens = arch_of("llama3.1-405b"), 16 * 2**20
    alone = model_flops(arch, tokens, 8192)
    assert alone > 2**63
    assert model_flops(arch, numpy.array([tokens]), numpy.array([8192]))[0] == alone
