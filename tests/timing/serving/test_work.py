"""What a pass has to compute, read and send, against sums done by hand."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.timing.serving.mixing import mean_attended, step_attended
from gpu_mem_calculator.timing.serving.work import cache_bytes, prompt_work, sent_bytes, step_work

from .conftest import served

LLAMA = 6_979_321_856  # weights of the layers of Llama 3.1 8B that a token meets
HEAD = 128_256 * 4096


def test_a_token_meets_every_weight_but_the_embedding_table() -> None:
    """Llama 3.1 8B: 8.03 B less the table of 128,256 × 4,096; norms are no products."""
    stage = served("llama3.1-8b").stages[0]
    assert sum(part.elements for part in stage.parts) == LLAMA + HEAD
    assert 8_030_261_248 - HEAD - 65 * 4096 == LLAMA + HEAD


def test_a_step_reads_weights_and_caches_once() -> None:
    """Every weight and norm in 16 bits but the table, and 128 KiB of each token of a cache."""
    work = step_work(served("llama3.1-8b").stages[0], 1000, 3)
    assert work.read_bytes == 2 * (8_030_261_248 - HEAD) + 3 * 1000 * 131_072


def test_a_tied_table_is_the_head_and_is_read() -> None:
    """Llama 3.2 1B: the table serves for both."""
    stage = served("llama3.2-1b").stages[0]
    assert step_work(stage, 0, 1).read_bytes == 2 * 1_235_814_400


def test_a_second_table_is_looked_up_only() -> None:
    """Gemma 3n has one for its layers: 262,144 rows of 35 x 256, and 262,400 of 2,048."""
    stage = served("gemma3n-e4b").stages[0]
    (head,) = (part for part in stage.parts if part.used == "last" and part.elements)
    assert head.elements == 262_400 * 2048


def test_an_encoder_reads_prompts_and_a_decoder_answers() -> None:
    """T5: a step reads the decoder's layers and the tied table, a prompt meets the encoder's."""
    stage = served("t5-base", engine="tensorrt_llm", engine_generation="tensorrt").stages[0]
    sizes = {part.used: part.elements for part in stage.parts}
    encoder = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    decoder = encoder + 12 * 4 * 768 * 768
    assert sizes == {"encoding": encoder, "always": decoder, "last": 32128 * 768}
    assert step_work(stage, 0, 1).read_bytes < 2 * 1.01 * (decoder + 32128 * 768) + 1e8
    flops = sum(prompt_work(stage, 512, 1).flops.values())
    assert flops == pytest.approx(2 * (512 * encoder + decoder + 32128 * 768), rel=0.12)


def test_a_prompt_meets_the_head_once() -> None:
    """2 operations a weight and token, 512.5 tokens seen in the mean, the head for the last."""
    work = prompt_work(served("llama3.1-8b").stages[0], 1024, 1)
    seen = 1024 * 512.5 * 32 * 32 * 256
    assert work.flops["bf16"] == 2 * (1024 * LLAMA + HEAD + seen)


def test_windows_stop_what_is_seen() -> None:
    """A token sees at most the window, and those at a prompt's beginning less."""
    assert mean_attended(4, None) == 2.5
    assert mean_attended(4, 2) == (1 + 2 + 2 + 2) / 4
    assert mean_attended(5, 2, chunked=True) == (1 + 2 + 1 + 2 + 1) / 5
    assert (step_attended(10, 4), step_attended(10, 4, chunked=True), step_attended(3, 4)) == (
        4,
        2,
        3,
    )
    stage = served("mistral-7b-v0.1").stages[0]
    assert cache_bytes(stage, 100_000) == cache_bytes(stage, 4096)


def test_of_experts_a_token_meets_a_few_and_a_batch_reads_many() -> None:
    """Qwen3-30B-A3B: 8 of 128 for a token, nearly all for a few hundred."""
    stage = served("qwen3-30b-a3b").stages[0]
    experts = 48 * 128 * 3 * 768 * 2048
    one, many = step_work(stage, 0, 1), step_work(stage, 0, 400)
    rest = one.read_bytes - 2 * experts / 16
    assert many.read_bytes == pytest.approx(rest + 2 * experts, rel=1e-6)
    two = step_work(stage, 0, 2)
    assert two.read_bytes - rest == pytest.approx(2 * experts * (1 - (1 - 1 / 16) ** 2))
    assert one.flops["bf16"] == pytest.approx(2 * 3.04e9, rel=0.01)  # 3.3 B with the table


def test_latents_are_unpacked_in_prompts_and_not_in_steps() -> None:
    """DeepSeek-V3: 128 heads × (192 + 128) for a token seen in a prompt, × (2 × 512 + 64) in a
    step; the cache is 576 elements a token, on every rank.
    """
    stage = served("deepseek-v3", 8, tensor_parallel_size=8, quantization="fp8").stages[0]
    (mixing,) = stage.mixings
    assert (mixing.count, mixing.prompt, mixing.step) == (61, 16 * 320, 16 * 1088)
    assert cache_bytes(stage, 1000) == 61 * 1000 * 576 * 2


def test_sparse_attention_reads_what_its_indexer_picks() -> None:
    """DeepSeek-V3.2: 2,048 tokens at most, and a small key of every one."""
    stage = served("deepseek-v3.2", 8, tensor_parallel_size=8).stages[0]
    grown = cache_bytes(stage, 100_000) - cache_bytes(stage, 50_000)
    assert stage.chosen == 2048
    assert grown == 61 * 50_000 * 128


def test_states_are_read_and_written() -> None:
    """Mamba-2 2.7B: a state of fixed size is read and written at any context."""
    stage = served("mamba2-2.7b").stages[0]
    assert cache_bytes(stage, 10) == cache_bytes(stage, 100_000)
    scan = 64 * 80 * 64 * 128
    convolution = 64 * (5120 + 2 * 128) * 3
    assert cache_bytes(stage, 10) == 2 * 2 * (scan + convolution)
    assert {one.each for one in stage.mixings} == {2 * 80 * 64 * 128}


def test_quantized_weights_have_their_bytes_and_their_unit() -> None:
    """FP8 on 8-bit units, AWQ in 4 bits and a scale and zero for 128, but products in 16."""
    fp8, awq = (served("llama3.1-8b", quantization=q).stages[0] for q in ("fp8", "awq"))
    assert {part.unit for part in fp8.parts} == {"fp8", "bf16"}
    assert {part.unit for part in awq.parts} == {"bf16"}
    packed = LLAMA * (4 + (16 + 4) / 128) / 8
    norms_and_head = 2 * (HEAD + 65 * 4096)
    assert step_work(awq, 0, 1).read_bytes == pytest.approx(packed + norms_and_head, rel=1e-6)


def test_llamacpp_reads_a_files_types() -> None:
    """Q4_K_M of Llama 3.1 8B is 4.58 GiB, of which the table (Q4_K, 4.5 bits) is not read."""
    stage = served("llama3.1-8b", engine="llamacpp", quantization="q4_k_m").stages[0]
    assert {part.unit for part in stage.parts} == {"int8 or fp16"}
    whole = step_work(stage, 0, 1).read_bytes + HEAD * 4.5 / 8
    assert whole == pytest.approx(4.58 * 2**30, rel=0.002)


def test_ranks_send_two_sums_a_layer() -> None:
    """Llama 3.1 8B over 4: 65 sums of 2 × 3/4 of the hidden states, or once through a switch."""
    stage = served("llama3.1-8b", 4, tensor_parallel_size=4).stages[0]
    assert sent_bytes(stage, 10) == 65 * 1.5 * 10 * 4096 * 2
    assert sent_bytes(stage, 10, adds_up=True) == 65 * 10 * 4096 * 2
    assert step_work(stage, 0, 1).messages == 65
    assert step_work(served("llama3.1-8b").stages[0], 0, 1).messages == 0
    parallel = served("gpt-j-6b", 2, tensor_parallel_size=2).stages[0]
    assert parallel.sums == 28 + 1  # attention and feed-forward run in parallel


def test_data_parallel_attention_shares_experts() -> None:
    """Eight ranks with a sequence each send eight tokens to the experts; alone, one."""
    mesh = {"tensor_parallel_size": 8, "data_parallel_size": 8, "enable_dp_attention": True}
    stage = served("deepseek-v3", 8, engine="sglang", quantization="fp8", **mesh).stages[0]
    whole = served(
        "deepseek-v3", 8, engine="sglang", quantization="fp8", tensor_parallel_size=8
    ).stages[0]
    assert {part.spread for part in stage.parts} == {1, 8}
    assert step_work(stage, 0, 1).read_bytes > step_work(stage.alone, 0, 1).read_bytes
    assert stage.mixings[0].step == 8 * whole.mixings[0].step
