"""TGI: its warm-up, its defaults, and the cache that remains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.run.served import ServerMemory
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving.tgi.activations import least_bytes, warm_tokens, warm_up_bytes
from gpu_mem_calculator.serving.tgi.command import notes
from gpu_mem_calculator.serving.tgi.defaults import attention_kernels, prefill_tokens, wiggle_room
from gpu_mem_calculator.serving.tgi.engine import serve
from gpu_mem_calculator.serving.tgi.graphs import graph_sizes
from gpu_mem_calculator.serving.tgi.shards import rank_shard
from gpu_mem_calculator.tools.read import read

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "ground_truth/serving_tgi.jsonl")
    .read_text()
    .splitlines()
]
COMPARED = [row for row in ROWS if "kv_tokens" in row["measured"]]


def run(model: str = "llama3.1-8b", gpu: str = "h100-80gb-sxm", **inference: Any) -> Run:
    """A run of a model by name."""
    file = {
        "model": {"name": model},
        "inference": {"engine": "tgi", **inference},
        "hardware": {"gpu": gpu},
    }
    return resolve(read(file).file).run


def served(
    model: str = "llama3.1-8b", gpu: str = "h100-80gb-sxm", **inference: Any
) -> ServerMemory:
    """The memory of one rank."""
    return serve(run(model, gpu, **inference))


def test_pools_are_those_of_the_logs() -> None:
    """Six of seven logs agree within 5 %; two ranks whose all-reduces interleave are 8 % off."""
    for row in COMPARED:
        result = estimate(row["config"]).serving
        assert result is not None
        error = (result.kv_tokens - row["measured"]["kv_tokens"]) / row["measured"]["kv_tokens"]
        alone = row["config"]["hardware"]["num_gpus"] == 1
        assert abs(error) < (0.05 if alone else 0.08), row["id"]
        gap = abs(result.kv_pool_bytes - row["measured"]["kv_pool_bytes"])
        assert gap < 0.6 * GIB, row["id"]


@pytest.mark.parametrize(
    ("version", "room"),
    [
        ("1.1.0", 1.0),
        ("2.2.0", 0.95),
        ("2.4.1", 0.90),
        ("3.0.1", 0.95),
        ("3.2.3", 0.93),
        ("3.3.7", 0.90),
    ],
)
def test_each_version_keeps_its_own_room_back(version: str, room: float) -> None:
    """TGI_WIGGLE_ROOM has a value for each version."""
    assert wiggle_room(run(engine_version=version)) == room


def test_since_3_0_a_share_of_the_card_stays_free() -> None:
    """At least (1 - 0.90) of the card stays free for any model."""
    tgi_run = run(max_num_batched_tokens=4096)
    result = serve(tgi_run)
    used = sum(item.bytes for item in result.items if item.figure != "graph")
    assert used == pytest.approx(tgi_run.card_bytes * 0.90, abs=result.token_bytes)


@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [("h100-80gb-sxm", 59870), ("a100-80gb-sxm", 20755), ("l4", 8049), ("rtx-4090", 4096)],
)
def test_the_launcher_chooses_what_the_card_computes_in_a_second(gpu: str, tokens: int) -> None:
    """The launcher has a figure for each card, and 4,096 tokens for others."""
    assert prefill_tokens(run(gpu=gpu)) == tokens


def test_the_launcher_chooses_no_more_than_fits_beside_the_weights() -> None:
    """A T4 could compute 4,323 tokens in a second; its memory by launcher/src/main.rs has fewer."""
    tgi_run = run(gpu="t4")
    layer = 3 * 14336 * 4096 + (32 + 2 * 8) * 128 + 32 * 128 * 4096
    left = int(tgi_run.card_bytes * 0.95) - 2 * (32 * layer + 2 * 4096 * 128256)
    token = 2 * 2 * 8 * 128 * 32 + 3 * 2 * (14336 + 14336 // 2)
    assert prefill_tokens(tgi_run) == left // token == 1525


def test_2_x_takes_the_longest_prompt_and_50_more() -> None:
    """The lengths are those of the log: 4095, 4096 and 4145."""
    tgi_run = run(engine_version="2.0.3")
    assert prefill_tokens(tgi_run) == 4145
    assert warm_tokens(tgi_run) == 8192


def test_1_4_has_the_same_lengths_for_every_model() -> None:
    """1,024 of 2,048 tokens, four prompts of a prefill, and CUDA graphs only on request."""
    tgi_run = run(engine_version="1.4.5")
    assert prefill_tokens(tgi_run) == 4096
    assert warm_tokens(tgi_run) == 4 * 2048
    assert graph_sizes(tgi_run) == ()
    assert graph_sizes(run(engine_version="2.0.0")) == (1, 2, 4, 8, 16, 32)


def test_awq_is_added_up_in_eight_parts_until_marlin() -> None:
    """Partial sums are eight times gate and up of 4,096 tokens; logits can reuse them."""
    options = {"max_num_batched_tokens": 4096, "max_total_tokens": 2048, "max_input_tokens": 1024}
    sizes = {}
    for version, gpu in (("2.0.4", "a10g"), ("2.2.0", "a10g"), ("2.2.0", "t4")):
        for quantization in ("awq", "none"):
            tgi_run = run(
                gpu=gpu, engine_version=version, quantization=quantization, dtype="fp16", **options
            )
            sizes[version, gpu, quantization] = warm_up_bytes(tgi_run, rank_shard(tgi_run))
    assert sizes["2.0.4", "a10g", "awq"] > sizes["2.0.4", "a10g", "none"] + 2**30
    assert sizes["2.2.0", "a10g", "awq"] == sizes["2.2.0", "a10g", "none"]
    assert sizes["2.2.0", "t4", "awq"] == sizes["2.0.4", "a10g", "awq"]


def test_a_full_card_gets_by_with_less() -> None:
    """Cached segments are released, down to what is alive at once."""
    tgi_run = run(engine_version="2.2.0", max_total_tokens=8192)
    shard = rank_shard(tgi_run)
    most, least = warm_up_bytes(tgi_run, shard), least_bytes(tgi_run, shard)
    assert least < most
    assert least <= warm_up_bytes(tgi_run, shard, (least + most) // 2) <= (least + most) // 2
    assert warm_up_bytes(tgi_run, shard, least - 1) == most


def test_gemma_3_is_shown_a_picture() -> None:
    """Masks of ten bytes for every pair of tokens stay while the text runs."""
    options = {"gpu": "a100-80gb-sxm", "max_num_batched_tokens": 16000}
    with_image, text = run("gemma3-12b-it", **options), run("gemma3-12b", **options)
    more = warm_up_bytes(with_image, rank_shard(with_image)) - warm_up_bytes(text, rank_shard(text))
    assert 10 * 16000**2 <= more < 16 * 16000**2


def test_heads_decide_the_kernels_and_kernels_the_blocks() -> None:
    """flashinfer has blocks of one token; flash decoding runs head sizes it does not support."""
    assert attention_kernels(run()) == "flashinfer"
    assert attention_kernels(run("phi-2")) == "flashdecoding"
    assert attention_kernels(run(engine_version="2.2.0")) == "paged"


def test_all_logits_were_made_until_3_0() -> None:
    """Later versions do so with enable_prefill_logprobs; until 2.4 there is a copy of them."""
    options = {"max_num_batched_tokens": 4096, "max_total_tokens": 4096, "max_input_tokens": 4095}
    sizes = {}
    for version in ("2.2.0", "2.4.0", "3.3.7"):
        tgi_run = run(engine_version=version, **options)
        sizes[version] = warm_up_bytes(tgi_run, rank_shard(tgi_run))
    tgi_run = run(enable_prefill_logprobs=True, **options)
    logits = 4096 * 128256 * 2
    # 128 MiB are flashinfer's
    assert sizes["2.2.0"] - sizes["2.4.0"] == pytest.approx(logits - 128 * 2**20, rel=0.02)
    assert sizes["2.4.0"] - sizes["3.3.7"] == pytest.approx(logits, rel=0.02)
    assert warm_up_bytes(tgi_run, rank_shard(tgi_run)) == sizes["2.4.0"]


def test_a_warm_up_is_as_large_as_its_layer() -> None:
    """It has seven rows of hidden states, q, k, v and the feed-forward of 4,096 tokens."""
    tgi_run = run(max_num_batched_tokens=4096)
    live = 4096 * 2 * (7 * 4096 + 4 * 14336)
    got = warm_up_bytes(tgi_run, rank_shard(tgi_run)) - (128 + 32) * 2**20
    assert live <= got < 1.15 * live


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("llama3.1-8b", {}, 131072),
        ("llama3.1-8b", {"kv_cache_dtype": "fp8"}, 65536),
        ("llama3.1-8b", {"tensor_parallel_size": 8}, 16384),
        ("gemma3-27b", {"tensor_parallel_size": 2}, 253952),  # windows are kept whole
        ("deepseek-v2-lite", {}, 27 * 16 * 2 * 192 * 2),  # latents are kept as keys and values
    ],
)
def test_a_token_takes_what_the_architecture_says(
    model: str, options: dict[str, Any], expected: int
) -> None:
    """Bytes of a token are exact."""
    assert served(model, **options).token_bytes == expected


def test_a_tied_head_is_loaded_again() -> None:
    """The embedding has one more row, and the head is a separate tensor."""
    memory = served("llama3.2-1b")
    weights = sum(item.bytes for item in memory.items if item.figure == "weights")
    assert weights == pytest.approx((1235814400 + 128256 * 2048) * 2, rel=0.002)


def test_fp8_of_its_own_leaves_attention_and_the_ends() -> None:
    """Feed-forwards of all layers but the first and the last are quantized."""
    plain, fp8 = served().figure("weights"), served(quantization="fp8").figure("weights")
    assert plain - fp8 == pytest.approx(30 * 3 * 4096 * 14336, rel=0.02)


def test_max_total_tokens_is_of_one_request() -> None:
    """It does not limit the cache, unlike in other servers."""
    memory = served(max_total_tokens=8192, max_input_tokens=8000, max_num_batched_tokens=8192)
    assert memory.max_seq_len == 8192
    assert memory.tokens > 8192


def test_the_longest_request_must_fit_in_the_warm_up() -> None:
    """The warm-up's cache is as long as the longest request, so TGI does not start."""
    assert (
        "warm-up prefill"
        in served(gpu="l4", max_total_tokens=100000, max_num_batched_tokens=4096).problem
    )
    assert not served(gpu="l4", max_total_tokens=10000, max_num_batched_tokens=4096).problem


def test_a_prefill_that_does_not_fit_is_said() -> None:
    """The problem is in TGI's words."""
    assert "warm-up prefill" in served("llama3.1-70b").problem


def test_graphs_can_be_turned_off() -> None:
    """The command has `--cuda-graphs 0`, and no graphs are captured."""
    assert served(cuda_graphs=[0]).figure("graph") == 0
    assert served(enforce_eager=True).figure("graph") == 0
    assert served().figure("graph") > 0


@pytest.mark.parametrize(
    ("version", "quantization", "captured"),
    [
        ("1.4.5", "none", False),
        ("2.0.0", "none", True),
        ("2.0.4", "nf4", False),
        ("2.1.0", "nf4", True),
    ],
)
def test_graphs_are_captured_by_default_since(
    version: str, quantization: str, captured: bool
) -> None:
    """2.0, with bitsandbytes 2.1."""
    sizes = graph_sizes(run(engine_version=version, quantization=quantization))
    assert bool(sizes) is captured


def test_the_command_says_what_was_asked_for() -> None:
    """The command has the run file's options, and no others."""
    words = " ".join(
        served(
            tensor_parallel_size=2,
            quantization="int8",
            max_total_tokens=4096,
            max_input_tokens=4000,
        ).command
    )
    assert words.startswith("text-generation-launcher --model-id MODEL --num-shard 2")
    assert "--quantize eetq" in words
    assert "--max-total-tokens 4096" in words
    assert "--max-batch-prefill-tokens" not in words


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kv_cache_dtype": "int8"}, "is not stored by TGI"),
        ({"engine_version": "0.9.4"}, "is not a version of TGI that is modelled"),
        ({"max_seq_len": 4096, "max_total_tokens": 8192}, "give one of them"),
        ({"max_total_tokens": 100, "max_input_tokens": 100}, "must be less than max_total_tokens"),
        ({"tensor_parallel_size": 16}, "is more than 8 key-value heads"),
        ({"quantization": "mxfp4"}, "is not served by TGI"),
        ({"speculative_method": "eagle"}, "is not one of TGI's"),
        ({"page_size": 1}, "is not an option of TGI"),
    ],
)
def test_what_it_refuses_is_said(options: dict[str, Any], sentence: str) -> None:
    """Each refusal is one sentence with the rule."""
    with pytest.raises(InputError, match=sentence):
        run(**options)


def test_states_are_not_served() -> None:
    """Mamba has no paged cache in TGI, and is refused."""
    with pytest.raises(InputError, match="TGI does not serve"):
        run("mamba2-2.7b")


def test_the_newest_version_is_modelled_as_itself() -> None:
    """A newer one is said to be taken for it."""
    assert not any("is modelled as" in note for note in notes(run(engine_version="3.3.7")))
    assert any("is modelled as 3.3.7" in note for note in notes(run(engine_version="3.3.8")))
