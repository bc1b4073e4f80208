"""How many sequences at which context, and what a change would bring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.advice.serving import server_remedies as serving_remedies
from gpu_mem_calculator.advice.serving.answers import answers
from gpu_mem_calculator.advice.serving.changes import (
    Server,
    fewest_gpus,
    largest_models,
    try_settings,
    what_ifs,
)
from gpu_mem_calculator.advice.serving.server_remedies import Move, Step, context_moves
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.serving.capacity import (
    CONTEXTS,
    batch_lines,
    context_lines,
    matrix,
)
from gpu_mem_calculator.runfile.inference_config import InferenceConfig
from gpu_mem_calculator.runfile.resolve.resolve_inference import find_server
from gpu_mem_calculator.runfile.resolve.serving_question import question_keys


def served(engine: str = "sglang", model: str = "llama3.1-8b", **keys: Any) -> dict[str, Any]:
    """A server on one H100, or on as many as tensor parallelism takes."""
    inference = {"engine": engine, **keys}
    return {"model": {"name": model}, "inference": inference, "hardware": {"gpu": "h100-80gb-sxm"}}


def server(data: dict[str, Any]) -> Server:
    """The server of a run file."""
    return Server.of(full_estimate(data, replay=False))


def test_a_cell_is_its_sequences_share_of_the_pool() -> None:
    """Twice the sequences take twice the memory; the most that fit take at most all of it."""
    estimate = full_estimate(served(max_seq_len=32768))
    found = matrix(estimate, (1024, 32768), (1, 2, 100_000))
    own = estimate.served[0]
    assert found.shares[0][0] == own.sequence_bytes(1024) / own.pool_bytes
    assert found.shares[0][1] == 2 * found.shares[0][0]
    assert found.shares[1][2] is None  # more than the server runs at once
    for context, most in zip(found.contexts, found.most, strict=True):
        assert most * own.sequence_bytes(context) <= own.pool_bytes
        assert (most + 1) * own.sequence_bytes(context) > own.pool_bytes


def test_rows_end_at_the_longest_sequence() -> None:
    """Powers of two below it, then itself."""
    found = matrix(full_estimate(served(max_seq_len=10_000)))
    assert found.contexts == (1024, 2048, 4096, 8192, 10_000)
    assert set(found.contexts[:-1]) <= set(CONTEXTS)


@pytest.mark.parametrize("model", ["gpt2", "llama3.2-1b", "gemma2-2b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_transformers_takes_what_its_ledger_says(model: str, batch: int) -> None:
    """The line through two ledgers meets the ledger of every other batch."""
    data = served("transformers", model, prompt_len=500, new_tokens=12, batch_size=batch)
    estimate = full_estimate(data, replay=False)
    found = matrix(estimate, (512,), (batch,))
    result = estimate.result
    whole = result.allocated_bytes + result.outside_torch_bytes
    share = found.shares[0][0]
    assert share is not None
    assert share * result.gpu_memory_bytes == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("model", ["llama3.2-1b", "gpt-oss-20b", "gemma2-2b", "deepseek-v2-lite"])
def test_parabolas_are_what_the_ledgers_say(model: str) -> None:
    """Interpolated contexts have the bytes of their own ledgers, with windows or experts, too."""
    resolved = full_estimate(served("transformers", model), replay=False).resolved
    contexts = [300 * step for step in range(1, 27)]
    found = dict(zip(contexts, batch_lines(resolved, contexts), strict=True))
    for context in contexts[::5]:
        assert found[context] == context_lines(resolved, context)


def test_fp8_doubles_the_tokens_and_more_ranks_more_than_double_them() -> None:
    """Half the bytes a token; half the weights and half the key-value heads a rank."""
    file = server(served())
    tokens = full_estimate(served()).result.serving
    assert tokens is not None
    found = {change.title: change for change in what_ifs(file)}
    assert found["KV cache in fp8"].kv_tokens == pytest.approx(2 * tokens.kv_tokens, rel=1e-3)
    assert found["2 GPUs"].kv_tokens > 2.1 * tokens.kv_tokens


def test_a_change_that_cannot_be_says_why() -> None:
    """One sentence instead of figures."""
    found = try_settings(
        server(served()), "three", ("inference.tensor_parallel_size=3", "hardware.num_gpus=3")
    )
    assert not found.fits
    assert "does not divide 32 heads" in found.problem


def test_the_fewest_gpus_are_enough_and_half_of_them_are_not() -> None:
    """Llama 3.3 70B in 16 bits: its weights alone take more than one card."""
    file = server(served(model="llama3.3-70b", max_seq_len=8192))
    found = fewest_gpus(file)
    assert found is not None
    ranks = int(found.setting[0].rpartition("=")[2])
    assert ranks > 1
    half = (f"inference.tensor_parallel_size={ranks // 2}",)
    assert not try_settings(file, "half", half).fits


@pytest.mark.parametrize(
    ("keys", "others"),
    [({}, 1), ({"data_parallel_size": 2}, 2), ({"pipeline_parallel_size": 2}, 1)],
)
def test_the_fewest_gpus_are_ranks_of_all_replicas_and_stages(
    keys: dict[str, int], others: int
) -> None:
    """A number of GPUs that the run file gives grows with the tensor-parallel ranks."""
    data = served(**keys)
    data["hardware"]["num_gpus"] = 4
    found = fewest_gpus(server(data))
    assert found is not None
    ranks = int(found.setting[0].removeprefix("inference.tensor_parallel_size="))
    assert found.setting[-1] == f"hardware.num_gpus={ranks * others}"


def test_the_largest_models_hold_a_whole_sequence() -> None:
    """The largest come first, each with a cache for one sequence of the given length."""
    found = largest_models(
        {"inference": {"engine": "sglang", "max_seq_len": 8192}, "hardware": {"gpu": "rtx-4090"}}
    )
    assert found
    assert all(change.max_concurrency >= 1 for change in found)
    assert "70b" not in " ".join(change.setting[0] for change in found)


def test_where_it_does_not_fit_the_fewest_gpus_are_looked_for() -> None:
    """And only there."""
    fits = answers(full_estimate(served()))
    short = answers(full_estimate(served(model="llama3.3-70b")))
    assert fits.fewest_gpus is None
    assert short.fewest_gpus is not None
    assert fits.speed is not None
    assert fits.speed.decode[0].sequences == 1


@pytest.mark.parametrize(
    ("keys", "shorter"),
    [
        ({"max_seq_len": 8192}, True),
        ({"batch_size": 4}, True),
        ({"batch_size": 4, "max_seq_len": 8192}, False),
    ],
)
def test_a_context_that_is_asked_for_stays(keys: dict[str, Any], shorter: bool) -> None:
    """Users and their context together are the question; either alone may have less context."""
    assert bool(list(context_moves(server(served(**keys))))) == shorter


@pytest.mark.parametrize(
    ("engine", "users", "keys"),
    [
        ("vllm", None, {"max_seq_len": 4096}),
        ("vllm", 3, {"batch_size": 3, "max_seq_len": 4096}),
        ("llamacpp", None, {"max_seq_len": 4096}),
        ("llamacpp", 3, {"batch_size": 3, "max_seq_len": 3 * 4096}),
    ],
)
def test_users_and_their_context_are_keys(
    engine: str, users: int | None, keys: dict[str, int]
) -> None:
    """llama.cpp divides its context among the users; without their number it is one user's."""
    assert question_keys(find_server(InferenceConfig(engine=engine)), users, 4096) == keys


@pytest.mark.parametrize("first", range(7))
def test_the_first_step_that_fits_is_found(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven steps, whichever it is."""
    steps = tuple(Step(str(number), ()) for number in range(7))

    def tried(_server: object, _chosen: object, picked: list[Step]) -> SimpleNamespace:
        number = int(picked[0].title)
        return SimpleNamespace(fits=number >= first, users=1, number=number)

    monkeypatch.setattr(serving_remedies, "_tried", tried)
    server: Any = None
    found: Any = serving_remedies.first_fitting(server, (Move("context", steps, ""),))
    assert found.number == first
