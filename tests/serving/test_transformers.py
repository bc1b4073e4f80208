"""Inference with transformers, estimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.runfile.config import InferenceConfig, ModelConfig
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.serving.conftest import FAMILIES, served


def ledger(**inference: Any) -> Ledger:
    """The ledger of a small Llama."""
    return full_estimate(served(**inference)).ledger


def cached(found: Ledger, instant: str) -> int:
    """Bytes of keys and values of the layers that are not at work."""
    return sum(int(e.at(instant)) for e in found.entries if ": cache " in e.name)


def test_a_prompt_leaves_keys_and_values_of_every_layer() -> None:
    """2 tensors × 3 layers × 3 sequences × 512 tokens × 2 heads of 32 × 2 bytes."""
    assert cached(ledger(), "prefill.scores") == 2 * 3 * 3 * 512 * 2 * 32 * 2


def test_the_last_step_has_a_key_for_all_but_the_last_token() -> None:
    """The last token is chosen and not run."""
    found = ledger(prompt_len=10, new_tokens=5)
    assert cached(found, "decode.scores") == 2 * 3 * 3 * 14 * 2 * 32 * 2


def test_one_new_token_needs_no_step() -> None:
    """The prompt's pass gives it."""
    result = estimate(served(new_tokens=1))
    assert {row["phase"] for row in result.timeline} == {"startup", "prefill"}


def test_a_plain_forward_makes_all_logits() -> None:
    """Without new tokens there is one pass, and a row of logits for every token."""
    whole, last = (
        next(int(e.bytes) for e in ledger(new_tokens=n).entries if e.name == "logits")
        for n in (0, 1)
    )
    assert whole - last == 3 * 511 * 1000 * 2


def test_a_window_bounds_the_cache() -> None:
    """Behind the first step a layer has memory for its window only."""
    found = full_estimate(served("mistral", new_tokens=9)).ledger
    assert cached(found, "prefill.scores") == 2 * 3 * 3 * 512 * 2 * 32 * 2
    assert cached(found, "decode.scores") == 2 * 3 * 3 * 128 * 2 * 32 * 2


def test_latent_attention_caches_its_latents() -> None:
    """64 numbers and 16 with a position for each token, for any number of heads."""
    found = full_estimate(served("deepseek_v3")).ledger
    assert cached(found, "prefill.scores") == 3 * 3 * 512 * (64 + 16) * 2


def test_a_tied_head_is_there_while_the_model_loads() -> None:
    """start-up has the table twice."""
    result = estimate(served(prompt_len=1, batch_size=1))
    assert result.startup_bytes is not None
    weights = int(result.num_parameters) * 2
    assert result.startup_bytes - weights >= 1000 * 256 * 2


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "bloom"])
def test_a_longer_prompt_never_takes_less(family: str) -> None:
    """Nor do more sequences, nor more new tokens."""
    base = estimate(served(family)).allocated_bytes
    for more in ({"prompt_len": 640}, {"batch_size": 4}, {"new_tokens": 200}):
        assert estimate(served(family, **more)).allocated_bytes >= base


@pytest.mark.parametrize("family", ["llama", "mixtral", "gemma2", "deepseek_v3"])
def test_one_formula_for_numbers_and_arrays(family: str) -> None:
    """A ledger of many batches at once has the peaks of each."""
    resolved = resolve(read(served(family)).file)
    sizes = [1, 3, 8]
    many = resolved.engine.ledger(replace(resolved.run, batch=np.asarray(sizes)))
    each = [int(resolved.engine.ledger(replace(resolved.run, batch=n)).peak()) for n in sizes]
    assert many.peak().tolist() == each


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "mixtral", "deepseek_v3"])
def test_formulas_are_written_with_letters(family: str) -> None:
    """The same bytes, with letters for the sizes."""
    found = explain(full_estimate(served(family)))
    assert found.symbolic
    assert found.letters["s"] == 512


def test_config_objects_are_a_run() -> None:
    """An InferenceConfig with a ModelConfig."""
    result = estimate(ModelConfig(name="gpt2"), InferenceConfig(prompt_len=64, new_tokens=4))
    assert result.peak_phase in ("prefill", "decode")
    assert result.trainable_parameters == 0
    assert "inference.batch_size=1" in result.assumed


def test_models_without_sdpa_run_eager() -> None:
    """Left out, attention is what the model has; asked for, it is refused."""
    assert resolve(read(served("bloom")).file).run.attention == "eager"
    with pytest.raises(InputError, match="use 'eager'"):
        estimate(served("bloom", attention="sdpa"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"engine": "vlm"}, "is not a known engine"),
        ({"quantization": "awq"}, "inference.quantization='awq' is not modelled"),
        ({"tensor_parallel_size": 2}, "inference.tensor_parallel_size=2 is not modelled"),
        ({"kv_cache_dtype": "fp8"}, "inference.kv_cache_dtype='fp8' is not modelled"),
        ({"engine_version": "4.0"}, "inference.engine_version='4.0' is not modelled"),
        ({"enforce_eager": True}, "inference.enforce_eager is not an option of transformers"),
        ({"max_num_seqs": 4}, "inference.max_num_seqs is not an option of transformers"),
        ({"dtype": "fp8"}, "inference.dtype='fp8' must be 'bf16', 'fp16' or 'fp32'"),
        ({"prompt_len": 0}, "prompt_len=0 must be a whole number from 1 to 1,000,000,000"),
        ({"max_seq_len": 512}, "is 515, more than max_seq_len=512"),
        ({"promt_len": 2}, "did you mean 'prompt_len'"),
        ({"attention": "flash_attention_2", "dtype": "fp32"}, "has no fp32 kernel"),
    ],
)
def test_what_generate_does_not_act_on_is_refused(section: dict[str, Any], said: str) -> None:
    """One sentence: the key, the value, the rule."""
    with pytest.raises(InputError) as caught:
        estimate(served(**section))
    (sentence,) = caught.value.problems
    assert said in sentence


def test_a_run_is_training_or_inference() -> None:
    """Sections of training with inference are refused, each with what to do."""
    data = served() | {"training": {"batch_size": 1}, "parallelism": {"data_parallel_size": 1}}
    with pytest.raises(InputError) as caught:
        estimate(data)
    assert [p.partition(" ")[0] for p in caught.value.problems] == ["training", "parallelism"]


def test_more_cards_than_it_runs_on_are_refused() -> None:
    """generate is on one GPU here."""
    with pytest.raises(InputError, match=r"hardware\.num_gpus=2"):
        estimate(served() | {"hardware": {"gpu": "h200", "num_gpus": 2}})


def test_learned_positions_end() -> None:
    """Prompt and new tokens stay within them."""
    with pytest.raises(InputError, match="use at most 2048"):
        estimate(served("gpt2", prompt_len=2048))


def test_a_checkpoint_in_another_format_is_refused() -> None:
    """An NF4 checkpoint is not loaded as INT8, and its speed is not asked for."""
    run = served(quantization="int8")
    run["model"] = {"name": "unsloth/Llama-3.2-1B-bnb-4bit"}
    with pytest.raises(InputError, match="own quantization_config says 'nf4'"):
        full_estimate(run)
