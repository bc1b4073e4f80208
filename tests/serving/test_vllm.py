"""vLLM: figures of its logs and of its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.core.calculator import full_estimate
from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.runfile import read
from gpu_mem_calculator.core.serving import resolve_inference, serving_result
from gpu_mem_calculator.ledger.ledger import CPU
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.memory.run import Run
from gpu_mem_calculator.memory.serving.served import (
    ACTIVATION,
    GRAPHS,
    NON_TORCH,
    POOL,
    WEIGHTS,
    Served,
)
from gpu_mem_calculator.memory.vllm import graphs, sampler, versions
from gpu_mem_calculator.memory.vllm.cuts import stage_layers
from gpu_mem_calculator.memory.vllm.defaults import settled
from gpu_mem_calculator.serving.vllm import serve

ROWS = Path(__file__).parents[1] / "ground_truth" / "serving_vllm.jsonl"
# Mean and worst of the absolute error over public logs, in percent. Worst: a tower of Gemma 3's
# with tables eight times as long (weights), the first of four stages (activation), libraries of two
# Granite models (non-torch), 0.10.2 that captured whole steps of a hybrid (graphs).
BUDGETS = {"weights_bytes": (0.4, 5), "activation_bytes": (1.2, 17), "non_torch_bytes": (5, 47),
           "graph_bytes": (10, 58), "kv_pool_bytes": (0.4, 4), "kv_tokens": (0.4, 4)}  # fmt: skip
R1 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "intermediate_size": 18432, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "vocab_size": 129280, "max_position_embeddings": 163840,
}  # fmt: skip


def run(
    model: str | dict[str, Any] = "llama3.1-8b", gpu: str = "h100-80gb-sxm", free: float | None =
    None, **inference: Any,
) -> Run:  # fmt: skip
    """A run, by default of the newest version on an idle H100."""
    hardware: dict[str, Any] = {"gpu": gpu}
    if free is not None:
        hardware["available_memory_bytes"] = int(free * GIB)
    section = {"name": model} if isinstance(model, str) else {"config": model}
    file = {"model": section, "inference": {"engine": "vllm", **inference}, "hardware": hardware}
    return resolve_inference(read(file)).run


def served(*args: Any, **inference: Any) -> Served:
    """The first stage of a server."""
    return serve(run(*args, **inference))


def item(found: Served, name: str) -> int:
    """Bytes of one item."""
    return sum(one.bytes for one in found.items if one.name == name)


def test_public_logs() -> None:
    """Weights, activations, pools and tokens of 52 start-ups, 0.6.6 to 0.19.0, are the logs'."""
    errors: dict[str, list[float]] = {}
    for line in ROWS.read_text().splitlines():
        row = json.loads(line)
        resolved = resolve_inference(read(row["config"]))
        stage = row["rank"] if resolved.run.mesh.pp > 1 else 0
        found = serving_result(serve(replace(resolved.run, stage=stage)))
        for key, value in row["measured"].items():
            errors.setdefault(key, []).append(100 * abs(getattr(found, key) - value) / value)
    assert errors.keys() == BUDGETS.keys()
    for key, (mean, worst) in BUDGETS.items():
        assert sum(errors[key]) / len(errors[key]) < mean, key
        assert max(errors[key]) < worst, key


@pytest.mark.parametrize(
    ("version", "bytes_each"), [("0.11.0", 38), ("0.16.0", 38), ("0.21.0", 14), ("0.22.0", 6),
                                ("0.27.0", 2)],
)  # fmt: skip
def test_sampling_by_version(version: str, bytes_each: int) -> None:
    """Sorting takes 38 bytes a logit, FlashInfer 14, the newer worker 6, then 2."""
    how = settled(run("qwen3-8b", engine_version=version))
    logits = 1024 * how.arch.vocab
    assert sum(size for _, size, _ in sampler.sampling(how, 2)) == bytes_each * logits


def test_flashinfer_where_it_is_installed() -> None:
    """Before 0.21 it samples where someone says so, and the command says so, too."""
    found = served(engine_version="0.11.0", use_flashinfer_sampler=True)
    assert item(found, "masked logits and probabilities") == 8 * 1024 * 128256
    assert found.command[:4] == ("env", "VLLM_USE_FLASHINFER_SAMPLER=1", "vllm", "serve")


def test_sampling_in_place_searches_a_row_for_each_multiprocessor() -> None:
    """0.17 to 0.20 mask in place: 14 bytes a logit, and 132 rows in fp32 on an H100."""
    how = settled(run(engine_version="0.19.0"))
    whole = 14 * 1024 * 128256 + 132 * 128256 * 4
    assert sum(size for _, size, _ in sampler.sampling(how, 2)) == whole


@pytest.mark.parametrize(
    ("seqs", "bytes_each"), [(1024, 38), (128, 38), (127, 50), (2, 50), (1, 38)]
)
def test_sorting_few_rows_takes_more(seqs: int, bytes_each: int) -> None:
    """torch sorts 2 to 127 rows as one, with 12 bytes more for each logit."""
    how = settled(run(engine_version="0.11.0", max_num_seqs=seqs))
    assert sum(size for _, size, _ in sampler.sampling(how, 2)) == bytes_each * seqs * 128256


@pytest.mark.parametrize(
    ("gpu", "version", "seqs", "tokens"),
    [
        ("h100-80gb-sxm", "0.11.0", 1024, 8192), ("a100-80gb-sxm", "0.11.0", 256, 2048),
        ("a100-80gb-sxm", "0.8.5", 1024, 8192), ("l4", "0.11.0", 256, 2048),
        ("l4", "0.8.0", 1024, 2048), ("h100-80gb-sxm", "0.7.3", 256, 2048),
        ("h100-80gb-sxm", "0.6.3", 256, 512),
    ],
)  # fmt: skip
def test_choices_of_the_server(gpu: str, version: str, seqs: int, tokens: int) -> None:
    """Sequences and tokens at once depend on the card and the version."""
    options = settled(run(gpu=gpu, engine_version=version)).options
    assert (options["max_num_seqs"], options["max_num_batched_tokens"]) == (seqs, tokens)


def test_v0_without_long_prompts_takes_them_whole() -> None:
    """A context of up to 32,768 tokens is one step, and never less than 2,048."""
    whole = settled(run(engine_version="0.7.3", max_seq_len=10000)).options
    short = settled(run(engine_version="0.7.3", max_seq_len=1024)).options
    assert whole["max_num_batched_tokens"] == 10000
    assert short["max_num_batched_tokens"] == 2048


def test_utilization_has_a_default_by_version() -> None:
    """0.9 until 0.19, 0.92 since."""
    shares = [settled(run(engine_version=v)).options["gpu_memory_utilization"]
              for v in ("0.19.0", "0.20.0")]  # fmt: skip
    assert shares == [0.9, 0.92]


@pytest.mark.parametrize(
    ("version", "most", "number"),
    [("0.7.3", 256, 35), ("0.10.0", 512, 67), ("0.11.0", 512, 134), ("0.19.0", 512, 102)],
)
def test_graphs_by_version(version: str, most: int, number: int) -> None:
    """V0 captures 35 batches, V1 67 pieces, from 0.11 whole steps as well, then fewer sizes."""
    how = settled(run(engine_version=version))
    assert (graphs.largest(how), graphs.count(how)) == (most, number)


def test_whole_steps_are_captured_up_to_the_sequences_at_once() -> None:
    """With 256 sequences 51 pieces and 35 whole steps, as logs of smaller cards show."""
    assert graphs.count(settled(run(gpu="l4", engine_version="0.22.1"))) == 51 + 35


def test_eager_has_no_graphs_and_named_activations() -> None:
    """enforce_eager: nothing is captured, and layers keep more by name."""
    eager = served("llama2-7b", engine_version="0.19.0", enforce_eager=True)
    compiled = served("llama2-7b", engine_version="0.19.0")
    assert eager.figure(GRAPHS) == 0
    assert eager.figure(ACTIVATION) - compiled.figure(ACTIVATION) == 8192 * 4096 * 2 - 50 * MIB


def test_graphs_are_taken_off_from_020() -> None:
    """Until 0.19 graphs come on top of the share, from 0.20 they are part of it."""
    for version, part in (("0.19.0", 0), ("0.20.0", 1)):
        found = served("llama4-scout", tensor_parallel_size=8, engine_version=version,
                       gpu_memory_utilization=0.9)  # fmt: skip
        share = -(-9 * run().card_bytes // 10)
        held = sum(found.figure(name) for name in (WEIGHTS, ACTIVATION, NON_TORCH))
        assert abs(share - held - part * found.figure(GRAPHS) - found.pool_bytes) <= 1


def test_sums_are_fused_on_hopper_from_017() -> None:
    """FlashInfer's workspaces: three of 512 MiB, on Hopper without a pipeline."""

    def workspaces(gpu: str, version: str, tp: int, pp: int = 1) -> int:
        found = served(gpu=gpu, engine_version=version, tensor_parallel_size=tp,
                       pipeline_parallel_size=pp)  # fmt: skip
        return item(found, "workspaces of fused sums")

    assert workspaces("h100-80gb-sxm", "0.19.0", 2) == 1536 * MIB
    assert workspaces("h100-80gb-sxm", "0.16.0", 2) == 0
    assert workspaces("a100-80gb-sxm", "0.19.0", 2) == 0
    assert workspaces("h100-80gb-sxm", "0.19.0", 2, 2) == 0


def test_too_little_is_free_to_start() -> None:
    """vLLM refuses to start where less is free than its share, and the sentence names a share."""
    found = served(free=60, engine_version="0.11.0")
    assert "gpu_memory_utilization=0.9 asks for 71.2" in found.problem
    assert found.problem.endswith("use 0.73")
    assert served(free=60, engine_version="0.11.0", gpu_memory_utilization=0.73).problem == ""


def test_a_context_that_the_pool_cannot_hold() -> None:
    """Qwen3-32B on one H100: 16,000 tokens fit, 32,000 do not, and the longest is named."""
    fits = served("qwen3-32b", engine_version="0.11.0", max_seq_len=16000)
    fails = served("qwen3-32b", engine_version="0.11.0", max_seq_len=32000)
    assert fits.problem == ""
    assert "max_seq_len=18272 or less" in fails.problem
    assert served("qwen3-32b", engine_version="0.11.0", max_seq_len=18272).problem == ""


def test_graphs_that_find_no_room() -> None:
    """Before 0.20 a share of nearly all leaves nothing for the graphs behind the cache."""
    found = served(engine_version="0.11.0", gpu_memory_utilization=0.99)
    assert "graphs are captured behind the cache" in found.problem


def test_a_pool_that_was_given() -> None:
    """kv_cache_memory_bytes is the pool, whatever the share."""
    found = served(engine_version="0.11.0", kv_cache_memory_bytes=8 * GIB)
    assert (found.pool_bytes, found.tokens) == (8 * GIB, 65536)


def test_the_stage_with_the_least_room_decides() -> None:
    """Four stages: every one holds the tokens of the last, which samples."""
    how = run(pipeline_parallel_size=4, engine_version="0.19.0", gpu_memory_utilization=0.95)
    stages = [serve(replace(how, stage=stage)) for stage in range(4)]
    assert len({one.tokens for one in stages}) == 1
    assert min(stages, key=lambda one: one.pool_bytes) is stages[3]
    assert stages[1].pool_bytes > stages[0].pool_bytes  # an embedding less


def test_layers_of_stages() -> None:
    """What is left over goes to the stages before the last; before 0.8 to the last."""
    new = run(R1, gpu="h200-141gb-sxm", tensor_parallel_size=8, pipeline_parallel_size=4)
    assert stage_layers(new) == [15, 15, 16, 15]
    assert stage_layers(replace(new, options={**new.options, "engine_version": "0.7.2"})) == [
        15, 15, 15, 16]  # fmt: skip


def test_experts_are_spread_or_cut() -> None:
    """Over the ranks of all copies: whole ones or slices of all; routers are on every rank."""

    def experts(**more: Any) -> int:
        found = served("qwen3-30b-a3b", engine_version="0.11.0", data_parallel_size=2,
                       tensor_parallel_size=2, **more)  # fmt: skip
        return item(found, "experts")

    assert experts() == experts(expert_parallel_size=4)
    alone = served("qwen3-30b-a3b", engine_version="0.11.0")
    routers = 48 * 128 * 2048 * 2
    assert item(alone, "experts") - routers == 4 * (experts() - routers)


def test_the_experts_workspace_stays_from_014() -> None:
    """Sampling finds it still there: 8 rows of 2,048 and 2,048 for each of 8,192 tokens."""
    found = served("qwen3-30b-a3b", engine_version="0.19.0")
    assert item(found, "workspace of the experts") == 8192 * 8 * 4096 * 2
    assert item(served("qwen3-30b-a3b", engine_version="0.11.0"), "workspace of the experts") == 0


def test_weights_in_the_hosts_memory() -> None:
    """cpu_offload_gb moves weights off the card and onto the host, and the pool grows by it."""
    here, away = served(engine_version="0.11.0"), served(engine_version="0.11.0", cpu_offload_gb=4)
    assert here.figure(WEIGHTS) - away.figure(WEIGHTS) == 4 * GIB
    assert away.pool_bytes - here.pool_bytes == 4 * GIB
    assert sum(one.bytes for one in away.items if one.place == CPU) == 4 * GIB


def test_swap_space_is_v0s() -> None:
    """V0 pins 4 GiB of the host for each GPU; V1 has no swap space and refuses it."""
    found = served(engine_version="0.7.3")
    assert [one.bytes for one in found.items if one.place == CPU] == [4 * GIB]
    with pytest.raises(InputError, match="swap_space is of vLLM's V0 engine"):
        run(engine_version="0.11.0", swap_space=8)


def test_the_least_card() -> None:
    """A card of needs_bytes serves one sequence of max_seq_len, one of 16 MiB less does not."""
    how = run("qwen3-32b", engine_version="0.11.0", max_seq_len=16000, max_num_seqs=64,
              max_num_batched_tokens=4096)  # fmt: skip
    needs = serve(how).needs_bytes
    for card, starts in ((needs, True), (needs - 16 * MIB, False)):
        found = serve(replace(how, card_bytes=card, free_bytes=card))
        assert (found.problem == "") is starts


def test_versions_that_there_are_not() -> None:
    """V0 ended with 0.10, V1 began with 0.8; others are refused with the nearest fix."""
    with pytest.raises(InputError, match=r"vLLM 0\.11\.0 has no V0 engine"):
        run(engine_version="0.11.0", engine_generation="v0")
    with pytest.raises(InputError, match=r"from vLLM 0\.8\.0 on"):
        run(engine_version="0.7.3", engine_generation="v1")
    with pytest.raises(InputError, match="'newest' is not a version"):
        run(engine_version="newest")
    assert versions.parsed("v0.10.1.1") == versions.parsed("0.10.1rc2") == (0, 10, 1)


def test_a_newer_version_is_said() -> None:
    """What is newer than the newest modelled is taken for it, and a note says so."""
    notes = served(engine_version="0.40.0").notes
    assert f"vLLM 0.40.0 is taken for {versions.NEWEST}" in notes


@pytest.mark.parametrize(
    ("model", "version", "newer"),
    [
        ("qwen3-8b", "0.21.0", False), ("qwen3-8b", "0.22.0", True),
        ("llama3.1-8b", "0.22.0", False), ("llama3.1-8b", "0.23.0", True),
        ("phi-4", "0.24.0", False), ("phi-4", "0.25.0", True),
        ("qwen3-30b-a3b", "0.28.0", False), ("qwen1.5-moe-a2.7b", "0.27.0", True),
        ("qwen3-30b-a3b", "0.29.0", True),
    ],
)  # fmt: skip
def test_which_worker_runs(model: str, version: str, newer: bool) -> None:
    """The newer GPU worker took over family by family."""
    assert versions.second_runner(run(model, engine_version=version)) is newer


def test_tensor_parallelism_must_divide_the_heads() -> None:
    """The sentence names the rule and what would do."""
    with pytest.raises(InputError, match="does not divide 32 heads; try 2 or 4"):
        run(tensor_parallel_size=3)


def test_the_command() -> None:
    """Only what is not vLLM's own choice is on the command line."""
    assert served().command == ("vllm", "serve", "MODEL")
    words = served(tensor_parallel_size=2, max_seq_len=8192, kv_cache_dtype="fp8",
                   gpu_memory_utilization=0.95, enforce_eager=True,
                   enable_prefix_caching=False).command  # fmt: skip
    assert words[3:] == (
        "--max-model-len", "8192", "--tensor-parallel-size", "2", "--gpu-memory-utilization",
        "0.95", "--kv-cache-dtype", "fp8", "--enforce-eager", "--no-enable-prefix-caching",
    )  # fmt: skip


def test_every_item_has_a_figure_and_a_source() -> None:
    """The parts add up to the share, and each names where its figure comes from."""
    found = served("deepseek-v2-lite", engine_version="0.11.0", max_seq_len=8192)
    share = -(-9 * run().card_bytes // 10)
    figures = (WEIGHTS, ACTIVATION, NON_TORCH, POOL)
    assert abs(sum(found.figure(name) for name in figures) - share) <= 1
    assert all(one.source.text for one in found.items)


def test_full_estimate_shows_a_server() -> None:
    """The verdict of the whole calculator is the engine's."""
    fits = full_estimate({"model": {"name": "llama3.1-8b"}, "inference": {"engine": "vllm"},
                          "hardware": {"gpu": "h100-80gb-sxm"}})  # fmt: skip
    assert fits.result.fits_on_gpu
    assert fits.served[0].tokens > 400_000
