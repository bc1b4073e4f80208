"""An inference section becomes a run: its defaults, its limits, its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.estimates.serving.roofline_stages import stage_shard
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA


def resolved(
    engine: str, model: str | dict[str, Any] = "gpt2", gpus: int | None = None, **keys: Any
) -> ResolvedRun:
    """The run of a server on H100s."""
    section = {"name": model} if isinstance(model, str) else {"config": model}
    hardware = {"gpu": "h100-80gb-sxm"} | ({} if gpus is None else {"num_gpus": gpus})
    inference = {"engine": engine, **keys}
    return resolve_inference(
        read({"model": section, "inference": inference, "hardware": hardware}).file, headers=False
    )


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"pipeline_parallel_size": 13},
            "pipeline_parallel_size=13 is more than 12 layers; use 12",
        ),
        (
            {"tensor_parallel_size": 5},
            "tensor_parallel_size=5 does not divide 12 heads; try 4 or 6",
        ),
        (
            {"max_seq_len": 1025},
            "max_seq_len is 1025, more than the model's 1024 learned positions",
        ),
        ({"dtype": "fp8"}, "dtype='fp8' must be 'bf16', 'fp16' or 'fp32'"),
        ({"num_beams": 2}, "num_beams is not an option of vLLM; leave it out"),
    ],
)
def test_a_server_of_gpt2_refuses_what_it_cannot_do(keys: dict[str, Any], words: str) -> None:
    """12 layers, 12 heads, 1,024 positions."""
    with pytest.raises(InputError) as error:
        resolved("vllm", **keys)
    assert error.value.problems[0].startswith(f"inference.{words}")


@pytest.mark.parametrize(
    "keys", [{"pipeline_parallel_size": 12}, {"tensor_parallel_size": 4}, {"max_seq_len": 1024}, {}]
)
def test_a_server_of_gpt2_takes_all_that_it_has(keys: dict[str, Any]) -> None:
    """The limits themselves are accepted, without a note."""
    assert resolved("vllm", **keys).warnings == ()


def test_llamacpp_may_have_more_gpus_than_layers() -> None:
    """It gives each GPU some of the layers, and some GPUs none."""
    assert resolved("llamacpp", gpus=13).run.mesh.pp == 13


@pytest.mark.parametrize(("length", "notes"), [(512, 0), (513, 1)])
def test_a_context_beyond_the_positions_is_noted(length: int, notes: int) -> None:
    """Rotary positions go on; the model was made for 512."""
    warnings = resolved("vllm", SMALL_LLAMA, max_seq_len=length).warnings
    expected = "max_seq_len=513 exceeds the model's 512 positions"
    assert list(warnings) == [expected] * notes


@pytest.mark.parametrize(("prompt", "fits"), [(1020, True), (1021, False)])
def test_prompt_and_answer_share_the_learned_positions(prompt: int, fits: bool) -> None:
    """Four new tokens after 1,020 are 1,024."""
    if fits:
        assert resolved("transformers", prompt_len=prompt, new_tokens=4).run.seq == prompt
        return
    with pytest.raises(
        InputError, match="prompt_len \\+ new_tokens is 1025, more than the model's"
    ):
        resolved("transformers", prompt_len=prompt, new_tokens=4)


@pytest.mark.parametrize(
    ("keys", "prompt"),
    [
        ({}, 504),  # 512 positions, 8 new tokens
        ({"max_seq_len": 100}, 92),
        ({"new_tokens": 500}, 12),
        ({"prompt_len": 100}, 100),
    ],
)
def test_the_default_prompt_leaves_the_answer_its_tokens(keys: dict[str, Any], prompt: int) -> None:
    """It is 1,024 tokens where the model has the positions."""
    assert resolved("transformers", SMALL_LLAMA, **keys).run.seq == prompt


def test_a_prompt_has_one_token_at_least() -> None:
    """Eight new tokens leave none of eight positions."""
    words = "prompt_len \\+ new_tokens is 9, more than max_seq_len=8"
    with pytest.raises(InputError, match=words):
        resolved("transformers", SMALL_LLAMA, max_seq_len=8)


@pytest.mark.parametrize(
    ("engine", "keys", "gpus"),
    [
        ("vllm", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 4),
        ("vllm", {"tensor_parallel_size": 2, "data_parallel_size": 2}, 4),
        (
            "sglang",
            {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_dp_attention": True},
            2,
        ),
    ],
)
def test_the_gpus_follow_from_the_mesh(engine: str, keys: dict[str, Any], gpus: int) -> None:
    """Data-parallel attention runs on the tensor-parallel ranks."""
    assert resolved(engine, SMALL_LLAMA, **keys).hardware.num_gpus == gpus
    with pytest.raises(InputError, match=f"tp × pp × dp = {gpus}; set it to {gpus}"):
        resolved(engine, SMALL_LLAMA, gpus=gpus + 1, **keys)


def test_a_plain_server_has_one_of_everything() -> None:
    """One rank on each axis, one sequence, one token."""
    run = resolved("vllm", SMALL_LLAMA).run
    mesh = run.mesh
    assert (mesh.dp, mesh.tp, mesh.pp, mesh.ep) == (1, 1, 1, 1)
    assert (run.batch, run.seq, run.new_tokens, run.micro_batches) == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [(8, ""), (4, ""), (2, ""), (6, "neither divides 4 key-value heads nor is a multiple of them")],
)
def test_key_value_heads_are_divided_or_repeated(tensor: int, words: str) -> None:
    """Four of them, and 24 query heads."""
    model = {**SMALL_LLAMA, "num_attention_heads": 24, "hidden_size": 768}
    if not words:
        assert resolved("vllm", model, tensor_parallel_size=tensor).run.mesh.tp == tensor
        return
    with pytest.raises(InputError, match=f"tensor_parallel_size={tensor} {words}; try 4"):
        resolved("vllm", model, tensor_parallel_size=tensor)


@pytest.mark.parametrize(
    ("engine", "keys", "assumed"),
    [
        ("vllm", {}, ()),
        ("vllm", {"engine_generation": "v0"}, ("inference.engine_version",)),
        (
            "transformers",
            {},
            ("inference.batch_size", "inference.prompt_len", "inference.new_tokens"),
        ),
        ("transformers", {"batch_size": 2, "prompt_len": 9, "new_tokens": 9}, ()),
    ],
)
def test_what_is_chosen_for_the_user_is_said(
    engine: str, keys: dict[str, Any], assumed: tuple[str, ...]
) -> None:
    """Sizes of a transformers run, and a version that is not the engine's default."""
    names = [one.partition("=")[0] for one in resolved(engine, SMALL_LLAMA, **keys).assumed]
    assert tuple(name for name in names if name.startswith("inference.")) == assumed


@pytest.mark.parametrize(
    ("model", "keys", "attention"),
    [("gpt2", {}, "sdpa"), ("gpt2", {"attention": "eager"}, "eager"), ("gpt-oss-20b", {}, "eager")],
)
def test_a_model_without_sdpa_runs_eagerly(
    model: str, keys: dict[str, Any], attention: str
) -> None:
    """As transformers chooses it."""
    assert resolved("transformers", model, **keys).run.attention == attention


def test_problems_of_all_sections_are_named_at_once() -> None:
    """A dtype that is not known, and one rank on two nodes."""
    inference = {"engine": "vllm", "dtype": "fp8"}
    file = read(
        {"model": {"name": "gpt2"}, "inference": inference, "hardware": {"num_nodes": 2}}
    ).file
    with pytest.raises(InputError) as error:
        resolve_inference(file)
    first, second = error.value.problems
    assert first.startswith("inference.dtype='fp8' must be ")
    assert second.startswith("hardware: 2 nodes of 1 GPUs are not num_gpus=1; ")


@pytest.mark.parametrize(
    ("engine", "keys", "experts"),
    [
        ("vllm", {"tensor_parallel_size": 4}, (1, 4)),
        ("vllm", {"tensor_parallel_size": 4, "expert_parallel_size": 4}, (4, 1)),
        ("vllm", {"tensor_parallel_size": 2, "data_parallel_size": 2}, (1, 4)),
        ("sglang", {"tensor_parallel_size": 4}, (1, 4)),
        ("sglang", {"tensor_parallel_size": 4, "expert_parallel_size": 2}, (2, 2)),
    ],
)
def test_experts_are_shared_out_or_sharded(
    engine: str, keys: dict[str, Any], experts: tuple[int, int]
) -> None:
    """vLLM's replicas share experts, too; what is not shared out is sharded by tensors."""
    model = {**SMALL_LLAMA, "model_type": "mixtral", "num_local_experts": 8}
    made = resolved(engine, {**model, "num_experts_per_tok": 2}, **keys)
    shard = stage_shard(made.run, made.engine, range(0, 4), 4)
    assert (shard.ep, shard.expert_tp) == experts
    assert (shard.embedding, shard.head) == (True, True)
    last = stage_shard(made.run, made.engine, range(2, 4), 4)
    assert (last.embedding, last.head) == (False, True)


H100 = {"gpu": "h100-80gb-sxm"}
SERVERS = ["vllm", "sglang", "tensorrt_llm", "tgi", "llamacpp"]


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize("given", [None, 2048])
def test_a_sequence_longer_than_the_model_is_refused(engine: str, given: int | None) -> None:
    """Whether the length is written down or the model's own."""
    inference: dict[str, Any] = {"engine": engine, "prompt_len": 1, "new_tokens": 8191}
    inference |= {} if given is None else {"max_seq_len": given}
    data = {"model": {"name": "tinyllama-1.1b"}, "inference": inference, "hardware": H100}
    with pytest.raises(InputError) as caught:
        resolve_inference(read(data).file, headers=False)
    (sentence,) = caught.value.problems
    assert sentence.startswith(
        "inference.prompt_len + new_tokens is 8192, more than max_seq_len=2048"
    )


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm", "llamacpp"])
def test_a_server_without_room_for_one_user_does_not_fit(engine: str) -> None:
    """A sequence that the KV cache does not hold, or a slot of llama.cpp, is not served."""
    inference: dict[str, Any] = {"engine": engine, "new_tokens": 65536, "max_seq_len": 131072}
    if engine == "llamacpp":
        inference |= {"n_parallel": 4}
    else:
        share = {"sglang": 0.25, "tensorrt_llm": 0.1}[engine]
        inference |= {"gpu_memory_utilization": share}
    data = {"model": {"name": "llama3.1-8b"}, "inference": inference, "hardware": H100}
    result = estimate(data)
    assert result.serving is not None
    assert (result.serving.users, result.verdict) == (0, "does_not_fit")
    assert result.headroom_bytes < 0


def test_a_server_that_lowers_its_context_serves_one_user() -> None:
    """Where nobody asks for a length, it is what the KV cache holds."""
    inference = {"engine": "tensorrt_llm", "gpu_memory_utilization": 0.1}
    data = {"model": {"name": "llama3.1-8b"}, "inference": inference, "hardware": H100}
    result = estimate(data)
    assert result.serving is not None
    assert result.serving.users >= 1
    assert result.serving.users_context == result.serving.longest_context < 131072
    assert result.fits_on_gpu


def test_what_a_server_takes_is_at_most_the_card() -> None:
    """A server whose pool, graphs and context are more than is free is not said to fit; where the
    graphs alone are too much, nobody can tell.
    """
    graphs = {"engine": "tgi", "cuda_graphs": [1024, 4096]}
    model = {"name": "qwen3-vl-30b-a3b", "num_layers": 4}
    found = estimate({"model": model, "inference": graphs, "hardware": {"gpu": "rtx-3090"}})
    assert (found.verdict, found.headroom_bytes < 0) == ("cannot_tell", True)
    free = {"gpu": "w7800", "num_gpus": 4, "available_memory_bytes": 3 * 2**30}
    model = {"name": "olmoe-1b-7b", "num_layers": 1}
    found = estimate({"model": model, "inference": {"engine": "sglang"}, "hardware": free})
    assert found.verdict != "fits"


@pytest.mark.parametrize(("engine", "method"), [("sglang", "eagle3"), ("vllm", "mtp")])
def test_a_draft_of_a_model_without_attention_is_refused(engine: str, method: str) -> None:
    """A model that was cut before its first layer with attention."""
    served = {"engine": engine, "speculative_method": method, "num_speculative_tokens": 1}
    with pytest.raises(InputError, match="no layer with attention"):
        estimate({"model": {"name": "qwen3.5-9b", "num_layers": 2}, "inference": served})
