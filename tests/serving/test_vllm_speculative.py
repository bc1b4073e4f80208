"""vLLM: memory of speculative decoding on a rank."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.serving.vllm.cache import block_pool
from gpu_mem_calculator.serving.vllm.checks import speculative_problems
from gpu_mem_calculator.serving.vllm.speculative import (
    draft_model,
    logit_rows,
    notes,
    num_mtp_layers,
    tokens_ahead,
)
from tests.serving.vllm_runs import GIB, arch, run_and_shard

GUESS = {"num_speculative_tokens": 3}


def head() -> Arch:
    """An EAGLE head for Llama-3.1-8B: one layer of the model."""
    one = arch("llama3.1-8b")
    return replace(one, layers=one.layers[:1])


def elements(model: str, **options: Any) -> int:
    """Elements of the draft's parameters on the rank."""
    run, shard = run_and_shard(model, **options)
    return sum(one.numel for one in draft_model(run, shard).parameters)


def layer(model: str = "llama3.1-8b") -> int:
    """Elements of one layer."""
    return arch(model).layers[0].num_parameters


def test_n_grams_take_nothing() -> None:
    """They are looked up on the host; states and windows still count their tokens."""
    run, shard = run_and_shard("llama3.1-8b", speculative_method="ngram", **GUESS)
    assert not draft_model(run, shard).parameters
    assert tokens_ahead(run) == 3
    plain, _ = run_and_shard("llama3.1-8b")
    assert block_pool(run, shard, GIB).tokens == block_pool(plain, shard, GIB).tokens


def test_an_eagle_head_is_a_projection_and_a_layer() -> None:
    """It has no first norm, and uses the model's embedding and head."""
    count = elements("llama3.1-8b", speculative_method="eagle", draft=head(), **GUESS)
    assert count == 2 * 4096 * 4096 + layer() - 4096


def test_an_eagle_head_of_a_pipeline_has_its_own_embedding() -> None:
    """The model's embedding is on another stage."""
    options = {"speculative_method": "eagle", "draft": head(), **GUESS}
    more = elements("llama3.1-8b", pp=2, **options) - elements("llama3.1-8b", **options)
    assert more == 128256 * 4096


def test_an_eagle3_head_reads_three_layers_and_has_a_small_vocabulary() -> None:
    """It has the elements of the published head for Llama-3.1-8B-Instruct, 0.85 GB in 16 bits."""
    count = elements("llama3.1-8b", speculative_method="eagle3", draft=head(), **GUESS)
    wider = (4096 + 1024 + 1024) * 4096
    assert count == 3 * 4096 * 4096 + layer() + wider + 2 * 4096 + 32000 * 4096
    assert 0.84e9 < count * 2 < 0.86e9


def test_a_draft_is_cut_like_the_model_but_for_the_projection() -> None:
    """Two ranks halve the layer's matrices."""
    options = {"speculative_method": "eagle", "draft": head(), **GUESS}
    norm, projection = 4096, 2 * 4096 * 4096
    on_one, on_two = (elements("llama3.1-8b", tp=tp, **options) for tp in (1, 2))
    assert on_two - norm - projection == (on_one - norm - projection) // 2


def test_a_drafts_layers_lie_in_the_models_pool() -> None:
    """A token takes 33 layers instead of 32."""
    run, shard = run_and_shard("llama3.1-8b", speculative_method="eagle", draft=head(), **GUESS)
    assert block_pool(run, shard, GIB).token_bytes == 33 * 4096


def test_a_small_model_drafts_with_all_it_has() -> None:
    """It has its embedding, layers and head; since 0.15 in V1, before that in V0."""
    small = arch("qwen3-0.6b")
    options = {"speculative_method": "draft_model", "draft": small, **GUESS}
    assert elements("qwen3-32b", engine_version="0.15.0", **options) == small.num_parameters
    run, shard = run_and_shard("qwen3-32b", engine_version="0.15.0", **options)
    both = 64 * 2 * 8 * 128 * 2 + 28 * 2 * 8 * 128 * 2
    assert block_pool(run, shard, 10 * GIB).token_bytes == both
    assert not list(speculative_problems(run))
    assert "0.15.0" in next(speculative_problems(run_and_shard("qwen3-32b", **options)[0]))


def test_only_the_last_stage_drafts() -> None:
    """The other stages have neither the draft's weights nor its layers."""
    options = {"speculative_method": "eagle", "draft": head(), "pp": 2, **GUESS}
    first = run_and_shard("llama3.1-8b", places=range(16), **options)
    last = run_and_shard("llama3.1-8b", places=range(16, 32), **options)
    assert not draft_model(*first).parameters
    assert draft_model(*last).parameters
    assert [block_pool(run, shard, GIB).token_bytes // 4096 for run, shard in (first, last)] == [
        16,
        17,
    ]


def test_multi_token_prediction_is_one_more_layer() -> None:
    """DeepSeek-V3: a layer, a projection of 2 x hidden, three norms; a head until 0.16."""
    model, hidden, vocab = arch("deepseek-v3"), 7168, 129280
    guess = {"speculative_method": "mtp"}
    assert num_mtp_layers(model) == 1
    predictor = model.layers[-1].num_parameters + 2 * hidden * hidden + 3 * hidden
    assert elements("deepseek-v3", engine_version="0.16.0", **guess) == predictor
    assert elements("deepseek-v3", engine_version="0.11.0", **guess) == predictor + vocab * hidden
    run, shard = run_and_shard("deepseek-v3", **guess)
    assert draft_model(run, shard).quantized
    assert block_pool(run, shard, 40 * GIB).token_bytes == 62 * 576 * 2
    assert tokens_ahead(run) == 1


def test_a_step_keeps_buffers_for_the_draft() -> None:
    """Hidden states and embeddings of max_num_batched_tokens are allocated before the model."""
    run, shard = run_and_shard("llama3.1-8b", speculative_method="eagle", draft=head(), **GUESS)
    assert {part.name: part.bytes for part in draft_model(run, shard).buffers} == {
        "draft: hidden states and embeddings of a step": 2 * 8192 * 4096 * 2,
        "draft: token ids and positions of a step": 8192 * 16,
    }


def test_the_trial_run_samples_a_row_more_for_each_sequence() -> None:
    """The rejection sampler needs one more row for each sequence."""
    assert logit_rows(run_and_shard("llama3.1-8b")[0]) == 0
    assert not list(notes(run_and_shard("llama3.1-8b")[0]))
    assert "1,024 rows" in next(
        notes(run_and_shard("llama3.1-8b", speculative_method="ngram", **GUESS)[0])
    )
    assert logit_rows(run_and_shard("llama3.1-8b", speculative_method="ngram", **GUESS)[0]) == 256


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"speculative_method": "lookahead"}, "is not modelled; use one of ngram"),
        ({"speculative_method": "mtp", **GUESS}, "predicts one token at a time"),
        ({"speculative_method": "eagle3", **GUESS}, "needs inference.speculative_model"),
        ({"speculative_method": "ngram"}, "needs inference.num_speculative_tokens"),
    ],
)
def test_what_cannot_guess_says_so(options: dict[str, Any], says: str) -> None:
    """Each refusal is one sentence."""
    run, _ = run_and_shard("llama3.1-8b", **options)
    assert says in next(speculative_problems(run))
