"""What guessing ahead adds to a vLLM rank."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.model.arch import Arch
from gpu_mem_calculator.serving.vllm.cache import block_pool
from gpu_mem_calculator.serving.vllm.checks import speculative_problems
from gpu_mem_calculator.serving.vllm.speculative import (
    draft_model,
    logit_rows,
    notes,
    num_mtp_layers,
    tokens_ahead,
)
from tests.serving.vllm_runs import GIB, arch, made

GUESS = {"num_speculative_tokens": 3}


def head() -> Arch:
    """An EAGLE head for Llama-3.1-8B: one layer of it."""
    one = arch("llama3.1-8b")
    return replace(one, layers=one.layers[:1])


def elements(model: str, **options: Any) -> int:
    """Parameters of the draft on the rank."""
    run, shard = made(model, **options)
    return sum(one.numel for one in draft_model(run, shard).parameters)


def layer(model: str = "llama3.1-8b") -> int:
    """Elements of one layer."""
    return arch(model).layers[0].num_parameters


def test_n_grams_take_nothing() -> None:
    """They are looked up on the host; states and windows know of them all the same."""
    run, shard = made("llama3.1-8b", speculative_method="ngram", **GUESS)
    assert not draft_model(run, shard).parameters
    assert tokens_ahead(run) == 3
    plain, _ = made("llama3.1-8b")
    assert block_pool(run, shard, GIB).tokens == block_pool(plain, shard, GIB).tokens


def test_an_eagle_head_is_a_projection_and_a_layer() -> None:
    """It lacks the layer's first norm, and uses the model's embedding and head."""
    found = elements("llama3.1-8b", speculative_method="eagle", draft=head(), **GUESS)
    assert found == 2 * 4096 * 4096 + layer() - 4096


def test_an_eagle_head_of_a_pipeline_has_its_own_embedding() -> None:
    """The model's lies on another stage."""
    options = {"speculative_method": "eagle", "draft": head(), **GUESS}
    more = elements("llama3.1-8b", pp=2, **options) - elements("llama3.1-8b", **options)
    assert more == 128256 * 4096


def test_an_eagle3_head_reads_three_layers_and_has_a_small_vocabulary() -> None:
    """As many elements as the published head for Llama-3.1-8B-Instruct, 0.85 GB in 16 bits."""
    found = elements("llama3.1-8b", speculative_method="eagle3", draft=head(), **GUESS)
    wider = (4096 + 1024 + 1024) * 4096
    assert found == 3 * 4096 * 4096 + layer() + wider + 2 * 4096 + 32000 * 4096
    assert 0.84e9 < found * 2 < 0.86e9


def test_a_draft_is_cut_like_the_model_but_for_the_projection() -> None:
    """Two ranks halve the layer's matrices."""
    options = {"speculative_method": "eagle", "draft": head(), **GUESS}
    norm, projection = 4096, 2 * 4096 * 4096
    alone, cut = (elements("llama3.1-8b", tp=tp, **options) for tp in (1, 2))
    assert cut - norm - projection == (alone - norm - projection) // 2


def test_a_drafts_layers_lie_in_the_models_pool() -> None:
    """33 layers a token instead of 32."""
    run, shard = made("llama3.1-8b", speculative_method="eagle", draft=head(), **GUESS)
    assert block_pool(run, shard, GIB).token_bytes == 33 * 4096


def test_a_small_model_drafts_with_all_it_has() -> None:
    """Its embedding, layers and head; since 0.15 in V1, before that in V0."""
    small = arch("qwen3-0.6b")
    options = {"speculative_method": "draft_model", "draft": small, **GUESS}
    assert elements("qwen3-32b", engine_version="0.15.0", **options) == small.num_parameters
    run, shard = made("qwen3-32b", engine_version="0.15.0", **options)
    both = 64 * 2 * 8 * 128 * 2 + 28 * 2 * 8 * 128 * 2
    assert block_pool(run, shard, 10 * GIB).token_bytes == both
    assert not list(speculative_problems(run))
    assert "0.15.0" in next(speculative_problems(made("qwen3-32b", **options)[0]))


def test_only_the_last_stage_drafts() -> None:
    """The others have neither its weights nor its layers."""
    options = {"speculative_method": "eagle", "draft": head(), "pp": 2, **GUESS}
    first = made("llama3.1-8b", places=range(16), **options)
    last = made("llama3.1-8b", places=range(16, 32), **options)
    assert not draft_model(*first).parameters
    assert draft_model(*last).parameters
    assert [block_pool(run, shard, GIB).token_bytes // 4096 for run, shard in (first, last)] == [
        16,
        17,
    ]


def test_multi_token_prediction_is_one_more_layer() -> None:
    """DeepSeek-V3: a layer, a projection of 2 x hidden, three norms; its own head until 0.16."""
    model, hidden, vocab = arch("deepseek-v3"), 7168, 129280
    guess = {"speculative_method": "mtp"}
    assert num_mtp_layers(model) == 1
    own = model.layers[-1].num_parameters + 2 * hidden * hidden + 3 * hidden
    assert elements("deepseek-v3", engine_version="0.16.0", **guess) == own
    assert elements("deepseek-v3", engine_version="0.11.0", **guess) == own + vocab * hidden
    run, shard = made("deepseek-v3", **guess)
    assert draft_model(run, shard).quantized
    assert block_pool(run, shard, 40 * GIB).token_bytes == 62 * 576 * 2
    assert tokens_ahead(run) == 1


def test_a_step_keeps_buffers_for_the_draft() -> None:
    """Hidden states and embeddings of max_num_batched_tokens, made before the model is loaded."""
    run, shard = made("llama3.1-8b", speculative_method="eagle", draft=head(), **GUESS)
    assert dict(draft_model(run, shard).buffers) == {
        "draft: hidden states and embeddings of a step": 2 * 8192 * 4096 * 2,
        "draft: token ids and positions of a step": 8192 * 16,
    }


def test_the_trial_run_samples_a_row_more_for_each_sequence() -> None:
    """The rejection sampler's."""
    assert logit_rows(made("llama3.1-8b")[0]) == 0
    assert not notes(made("llama3.1-8b")[0])
    assert "1,024 rows" in notes(made("llama3.1-8b", speculative_method="ngram", **GUESS)[0])[0]
    assert logit_rows(made("llama3.1-8b", speculative_method="ngram", **GUESS)[0]) == 256


@pytest.mark.parametrize(
    ("options", "says"),
    [({"speculative_method": "lookahead"}, "is not modelled; use one of ngram"),
     ({"speculative_method": "mtp", **GUESS}, "predicts one token at a time"),
     ({"speculative_method": "eagle3", **GUESS}, "needs inference.speculative_model"),
     ({"speculative_method": "ngram"}, "needs inference.num_speculative_tokens")],
)  # fmt: skip
def test_what_cannot_guess_says_so(options: dict[str, Any], says: str) -> None:
    """One sentence each."""
    run, _ = made("llama3.1-8b", **options)
    assert says in next(speculative_problems(run))
