"""How long a pass takes at least, and what bounds it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.serving.speed import find_card_rates, no_speed, speed
from gpu_mem_calculator.estimates.verdict_words import server_words
from gpu_mem_calculator.report.serving.html import pace
from gpu_mem_calculator.report.serving.words import speed_words
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.timing.serving.roofline import (
    COMPUTE,
    LINK,
    MEMORY,
    QUANTIZED,
    SHORT_SUM,
    CardRates,
    first_token_time,
    prompt_rate,
    prompts,
    requests,
    step_rates,
)

from .conftest import CARD, run_file, served


def test_alone_a_sequence_waits_for_the_weights() -> None:
    """One token reads every weight once: bytes over bandwidth."""
    together, each, bound = step_rates(served("llama3.1-8b"), 0, 1)
    assert bound == MEMORY
    assert together == each == pytest.approx(4e12 / (2 * (8_030_261_248 - 128_256 * 4096)))


def test_a_long_prompt_is_bound_by_the_products() -> None:
    """And FP8 units are twice as fast, scores in 16 bits aside."""
    slow, fast = served("llama3.1-8b"), served("llama3.1-8b", quantization="fp8")
    result = first_token_time(slow, 4096, 8192)
    assert result.bound == COMPUTE
    assert 1.4 < result.seconds / first_token_time(fast, 4096, 8192).seconds < 2
    assert prompt_rate(slow, 4096)[0] == pytest.approx(4096 / result.seconds)


def test_computing_and_reading_overlap_and_messages_are_waited_for() -> None:
    """Two ranks halve a step but for 65 messages."""
    one = 1 / step_rates(served("llama3.1-8b"), 0, 1)[1]
    two = 1 / step_rates(served("llama3.1-8b", 2, tensor_parallel_size=2), 0, 1)[1]
    assert two == pytest.approx(one / 2 + 65e-6, rel=1e-3)
    slow = replace(CARD, link_bytes_per_second=1e9, link_seconds=1e-4)
    assert step_rates(served("llama3.1-8b", 8, slow, tensor_parallel_size=8), 100, 64)[2] == LINK


def test_stages_come_one_after_the_other_and_work_at_once() -> None:
    """Two stages: a token takes as long as on one card, two sequences are nearly twice as fast."""
    one = served("llama3.1-8b")
    two = served("llama3.1-8b", 2, pipeline_parallel_size=2)
    assert step_rates(two, 0, 1)[1] == pytest.approx(step_rates(one, 0, 1)[1])
    slowest = max(part for part in (sum(p.bytes for p in s.parts) for s in two.stages))
    assert step_rates(two, 0, 2)[0] == pytest.approx(4e12 / slowest)
    alone = replace(two, overlapped=False)
    assert step_rates(alone, 0, 2)[0] == pytest.approx(2 * step_rates(one, 0, 1)[0])


def test_chunks_of_a_prompt_follow_each_other_through_the_stages() -> None:
    """One chunk takes both stages' time, many nearly the slower one's."""
    two = served("llama3.1-8b", 2, pipeline_parallel_size=2)
    whole, chunked = (first_token_time(two, 8192, chunk).seconds for chunk in (8192, 64))
    slowest = prompts(two, 8192, 1).seconds
    assert whole > 1.9 * slowest
    assert chunked == pytest.approx(slowest, rel=0.01)


def test_a_request_is_its_prompt_and_its_steps() -> None:
    """One request computes its prompt, then its steps; of several, prompts overlap with steps."""
    one = served("llama3.1-8b")
    prompt = prompts(one, 2048, 1).seconds
    steps = requests(one, 2048, 99, 1, prompted=True).seconds
    assert requests(one, 2048, 100, 1).seconds == pytest.approx(prompt + steps)
    many = requests(one, 2048, 100, 64).seconds
    assert (
        many < prompts(one, 2048, 64).seconds + requests(one, 2048, 99, 64, prompted=True).seconds
    )
    first, last = (1 / step_rates(one, context, 1)[1] for context in (2049, 2147))
    assert 98 * first < steps < 99 * last


def test_steps_of_a_growing_cache_take_the_mean_of_the_first_and_the_last() -> None:
    """Each step reads one token more than the step before."""
    one = served("llama3.1-8b")
    first, last = (1 / step_rates(one, context, 1)[1] for context in (1001, 5001))
    steps = requests(one, 1000, 4000, 1, prompted=True).seconds
    assert steps == pytest.approx(4000 * (first + last) / 2)


def test_units_that_a_card_lacks_are_its_16_bit_ones() -> None:
    """FP8 on an A100; sums in 16 bits are twice as fast on a GeForce card."""
    old = find_card_rates(GPUConfig(gpu="a100-80gb-sxm"))
    game = find_card_rates(GPUConfig(gpu="rtx-4090"))
    assert old is not None
    assert game is not None
    assert old.rate("fp8") == old.rate("bf16") == old.rate(SHORT_SUM) == 312e12
    assert old.rate(QUANTIZED) == 624e12
    assert game.rate(SHORT_SUM) == pytest.approx(2 * game.rate("fp16"), rel=0.001)
    oldest = find_card_rates(GPUConfig(gpu="gtx-1080-ti"))  # no 16-bit products, dp4a
    assert oldest is not None
    assert (oldest.rate(SHORT_SUM), oldest.rate(QUANTIZED)) == (11.3e12, 45.2e12)
    assert (
        CardRates(
            flops={}, memory_bytes_per_second=1, link_bytes_per_second=1, link_seconds=0
        ).rate("bf16")
        == 0
    )


def test_a_cards_rates_come_from_the_catalogue() -> None:
    """An H100 SXM: 3.35 TB/s; within a node its own link counts, not the network."""
    card = find_card_rates(GPUConfig(gpu="h100-80gb-sxm", interconnect="infiniband"), 8, 8)
    assert card is not None
    assert card.memory_bytes_per_second == pytest.approx(3.35e12, rel=0.001)
    assert card.link_bytes_per_second == 450e9
    assert card.adds_up
    beyond = find_card_rates(GPUConfig(gpu="h100-80gb-sxm", interconnect="infiniband"), 16, 8)
    assert beyond is not None
    assert beyond.link_bytes_per_second == 25e9
    assert find_card_rates(GPUConfig(gpu_memory_gb=80)) is None


def test_replicas_multiply_what_all_make() -> None:
    """Two replicas: one sequence is as fast, all together twice."""
    one, two = (
        speed(full_estimate(run_file("llama3.1-8b", n, data_parallel_size=n))) for n in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert two.first_token_seconds == one.first_token_seconds
    assert two.prefill_tokens_per_second == 2 * one.prefill_tokens_per_second
    assert two.decode[0] == one.decode[0]
    assert two.decode[1].sequences == pytest.approx(2 * one.decode[1].sequences, rel=0.01)
    assert two.decode[1].tokens_per_second == pytest.approx(
        two.decode[1].sequences * two.decode[1].tokens_per_second_each
    )


def test_what_lies_in_the_hosts_memory_has_no_speed() -> None:
    """Its bandwidth is not known, and the report says so."""
    estimate = full_estimate(run_file("llama3.1-8b", cpu_offload_gb=4))
    assert speed(estimate) is None
    said = "4 GiB of weights are in host memory, whose bandwidth is not known"
    assert no_speed(estimate) == f"speed not estimated: {said}"
    assert "no GPU given" in no_speed(
        full_estimate(
            {
                "model": {"name": "llama3.1-8b"},
                "inference": {"engine": "vllm"},
                "hardware": {"gpu_memory_gb": 80},
            }
        )
    )


def test_lengths_stay_within_what_is_served() -> None:
    """A prompt of 1,024 and an answer of 256, less where the server takes less; decoding is at the
    tokens of the verdict's users.
    """
    result = [speed(full_estimate(run_file("llama3.1-8b", max_seq_len=n))) for n in (8192, 1000)]
    assert [(f.prompt_len, f.context) for f in result if f] == [(1024, 8192), (744, 1000)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_seq_len": 8192},
        {"max_seq_len": 8192, "batch_size": 5},
        {"max_seq_len": 8192, "batch_size": 5000},
        {"batch_size": 35, "prompt_len": 2000, "new_tokens": 100, "data_parallel_size": 2},
    ],
)
def test_speed_is_of_the_users_that_the_verdict_names(options: dict[str, int]) -> None:
    """Their number, those asked for or those that fit, and the tokens of each; in words too."""
    file = run_file("llama3.1-8b", **options)
    copies = options.get("data_parallel_size", 1)
    found = full_estimate(replace(file, hardware=replace(file.hardware, num_gpus=copies)))
    serving, result = found.result.serving, speed(found)
    assert serving is not None
    assert result is not None
    users = min(serving.users, options.get("batch_size", serving.users))
    assert [row.sequences for row in result.decode] == [1, users]
    assert result.context == serving.users_context
    each = f"at {serving.users_context:,} tokens each"
    assert f"{users:,} users {each}" in server_words(serving) or users < options["batch_size"]
    assert f" for {users:,} users (" in speed_words(result)
    assert speed_words(result).endswith(each)
    assert f"<dt>{users:,} users {each}</dt>" in pace(result)


def test_speculation_is_left_out_and_said_so() -> None:
    """Guesses make several tokens in a pass."""
    result = speed(
        full_estimate(run_file("llama3.1-8b", speculative_method="ngram", num_speculative_tokens=4))
    )
    assert result is not None
    note = "without speculative decoding, which can generate several tokens per pass"
    assert result.notes == [note]
