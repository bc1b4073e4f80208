"""A server's speed by roofline, against sums done by hand."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.core.model_source import find_model
from gpu_mem_calculator.core.models import GPUConfig, ModelConfig
from gpu_mem_calculator.core.speed import find_card
from gpu_mem_calculator.model.arch import Arch
from gpu_mem_calculator.timing.card import Card
from gpu_mem_calculator.timing.serving import COMPUTE, LINK, MEMORY, Serving, decode, prefill
from gpu_mem_calculator.timing.work import attention_flops, matmul_elements, reduced, touched

CARD = Card(flops={"bf16": 1e15, "fp8": 2e15}, memory_bytes_per_second=4e12,
            link_bytes_per_second=4e11, link_seconds=1e-6)  # fmt: skip


def arch(name: str) -> Arch:
    """A preset's architecture."""
    return find_model(ModelConfig(name=name)).arch


def served(name: str, tp: int = 1, dtype: str = "bf16", card: Card = CARD) -> Serving:
    """A preset on some ranks, in 16 bits."""
    found = arch(name)
    return Serving(arch=found, card=card, tp=tp, weights_bytes=2 * found.num_parameters // tp,
                   dtype=dtype, bits=16)  # fmt: skip


def test_a_token_meets_every_weight_but_the_embedding_table() -> None:
    """Llama 3.1 8B: 8.03 B less the table of 128,256 × 4,096, and norms are no products."""
    found = arch("llama3.1-8b")
    norms = 65 * 4096
    assert matmul_elements(found) == found.num_parameters - 128256 * 4096 - norms


def test_of_experts_a_token_meets_a_few() -> None:
    """Mixtral 8x7B: 12.9 B active of 46.7 B."""
    active = matmul_elements(arch("mixtral-8x7b")) + 32000 * 4096
    assert active == pytest.approx(12.88e9, rel=0.002)


def test_attention_counts_both_products_and_stops_at_a_window() -> None:
    """2 operations × (head size of keys and of values) × heads × tokens seen, in each layer."""
    assert attention_flops(arch("llama3.1-8b"), 1000) == 32 * 2 * 32 * 256 * 1000
    mistral = arch("mistral-7b-v0.1")
    assert attention_flops(mistral, 100_000) == attention_flops(mistral, 4096)


def test_alone_a_sequence_waits_for_the_weights() -> None:
    """One token reads every weight once: bytes over bandwidth."""
    serving = served("llama3.1-8b")
    step = decode(serving, 1, 1, 0)
    assert step.bound == MEMORY
    assert step.seconds == pytest.approx(serving.weights_bytes / 4e12)


def test_many_sequences_read_their_caches_too() -> None:
    """The step grows by the bytes of every cache."""
    serving = served("llama3.1-8b")
    cache = 131072 * 1000
    more = decode(serving, 1000, 64, cache).seconds - decode(serving, 1000, 64, 0).seconds
    assert more == pytest.approx(64 * cache / 4e12)


def test_a_long_prompt_is_bound_by_the_products() -> None:
    """2 operations a weight and token; the head sees the last token only."""
    serving = served("llama3.1-8b")
    found = prefill(serving, 4096)
    assert found.bound == COMPUTE
    stack = matmul_elements(serving.arch) - 128256 * 4096
    least = 4096 * 2 * stack / 1e15
    assert least < found.seconds < 1.15 * least


def test_fp8_units_are_twice_as_fast() -> None:
    """Where the card has them; else products run in 16 bits."""
    slow, fast = prefill(served("llama3.1-8b"), 8192), prefill(
        served("llama3.1-8b", dtype="fp8"), 8192)  # fmt: skip
    assert slow.seconds == pytest.approx(2 * fast.seconds)
    old = Card(flops={"fp16": 1e14}, memory_bytes_per_second=1e12, link_bytes_per_second=1e10,
               link_seconds=1e-6)  # fmt: skip
    assert old.rate("fp8") == old.rate("bf16") == 1e14


def test_ranks_send_two_sums_a_layer() -> None:
    """Llama 3.1 8B over 4: 65 sums of 2 × 3/4 of the hidden states."""
    sent, messages = reduced(arch("llama3.1-8b"), 10, 4, 16)
    assert sent == 65 * 1.5 * 10 * 4096 * 2
    assert messages == 130
    slow = Card(flops={"bf16": 1e15}, memory_bytes_per_second=4e12, link_bytes_per_second=1e9,
                link_seconds=1e-5)  # fmt: skip
    assert decode(served("llama3.1-8b", 8, card=slow), 100, 64, 0).bound == LINK
    assert reduced(arch("llama3.1-8b"), 10, 1, 16) == (0.0, 0)


def test_few_tokens_touch_few_experts() -> None:
    """One token reads 8 of Qwen3-30B-A3B's 128 experts a layer, many tokens all of them."""
    found = arch("qwen3-30b-a3b")
    experts = 48 * 128 * 3 * 768 * 2048
    rest = found.num_parameters - found.vocab * found.hidden - found.hidden - experts
    alone = (rest + experts / 16) / (rest + experts)
    assert touched(found, 1) == pytest.approx(alone, rel=1e-6)
    assert touched(found, 4096) == pytest.approx(1.0)


def test_a_cards_rates_come_from_the_catalogue() -> None:
    """An H100 SXM: 3.35 TB/s; a card without a name has none."""
    card = find_card(GPUConfig(gpu="h100-80gb-sxm"))
    assert card is not None
    assert card.memory_bytes_per_second == pytest.approx(3.35e12, rel=0.001)
    assert card.link_bytes_per_second == pytest.approx(450e9)
    assert find_card(GPUConfig(gpu_memory_gb=80)) is None
