"""vLLM: defaults by version and card, what it refuses, and the command."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import CPU
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.served import ACTIVATION
from gpu_mem_calculator.run.weights.layer_widths import distinct_widths
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving.vllm import graphs, sampler, versions
from gpu_mem_calculator.serving.vllm.activations import workspace_part
from gpu_mem_calculator.serving.vllm.defaults import apply_defaults
from gpu_mem_calculator.serving.vllm.non_torch import counted_parts
from gpu_mem_calculator.serving.vllm.shards import rank_shard, stage_layers
from gpu_mem_calculator.tools.read import read

from .vllm_servers import R1, item, run, served


@pytest.mark.parametrize(
    ("version", "bytes_each"),
    [("0.11.0", 38), ("0.16.0", 38), ("0.21.0", 14), ("0.22.0", 6), ("0.27.0", 2), ("0.33.0", 14)],
)
def test_sampling_by_version(version: str, bytes_each: int) -> None:
    """Sorting takes 38 bytes a logit, FlashInfer 14, the newer worker 6, then 2, and FlashInfer's
    again where it tries every parameter.
    """
    resolved = apply_defaults(run("qwen3-8b", engine_version=version))
    logits = 1024 * resolved.arch.vocab
    assert sum(part.bytes for part in sampler.sampling_parts(resolved, 2)) == bytes_each * logits


@pytest.mark.parametrize(("version", "deducted"), [("0.21.0", 0), ("0.26.0", 0), ("0.27.0", 1)])
def test_the_newer_worker_counts_tokens_of_every_sequence(version: str, deducted: int) -> None:
    """4 bytes for each word of each sequence; from 0.27 on they are deducted from the pool."""
    memory = served("qwen3-8b", engine_version=version)
    names = [one.name for one in memory.items].count("counts of tokens")
    assert names == deducted
    outside = [size for name, size, _ in memory.outside if name == "counts of tokens"]
    assert outside == ([1024 * 151_936 * 4] if version == "0.26.0" else [])


def test_cublas_is_in_the_first_snapshot_from_0_33_on() -> None:
    """Its handle and its workspace are then not deducted."""
    for version, found in (("0.32.0", []), ("0.33.0", ["cuBLAS handle", "cuBLAS workspace"])):
        memory = served(engine_version=version)
        outside = [name for name, _, _ in memory.outside]
        assert [name for name in outside if "cuBLAS" in name] == found
        assert ("cuBLAS workspace" in [one.name for one in memory.items]) == (not found)


def test_flashinfer_where_it_is_installed() -> None:
    """Before 0.21 it samples only with use_flashinfer_sampler, which is in the command."""
    memory = served(engine_version="0.11.0", use_flashinfer_sampler=True)
    assert item(memory, "masked logits and probabilities") == 8 * 1024 * 128256
    assert memory.command[:4] == ("env", "VLLM_USE_FLASHINFER_SAMPLER=1", "vllm", "serve")


def test_sampling_in_place_searches_a_row_for_each_multiprocessor() -> None:
    """0.17 to 0.20 mask in place: 14 bytes a logit, and 132 rows in fp32 on an H100."""
    resolved = apply_defaults(run(engine_version="0.19.0"))
    total = 14 * 1024 * 128256 + 132 * 128256 * 4
    assert sum(part.bytes for part in sampler.sampling_parts(resolved, 2)) == total


@pytest.mark.parametrize(
    ("seqs", "bytes_each"), [(1024, 38), (128, 38), (127, 50), (2, 50), (1, 38)]
)
def test_sorting_few_rows_takes_more(seqs: int, bytes_each: int) -> None:
    """torch's sort takes 12 bytes more for each logit of 2 to 127 rows."""
    resolved = apply_defaults(run(engine_version="0.11.0", max_num_seqs=seqs))
    assert (
        sum(part.bytes for part in sampler.sampling_parts(resolved, 2))
        == bytes_each * seqs * 128256
    )


@pytest.mark.parametrize(
    ("gpu", "version", "seqs", "tokens"),
    [
        ("h100-80gb-sxm", "0.11.0", 1024, 8192),
        ("a100-80gb-sxm", "0.11.0", 256, 2048),
        ("a100-80gb-sxm", "0.8.5", 1024, 8192),
        ("l4", "0.11.0", 256, 2048),
        ("l4", "0.8.0", 1024, 2048),
        ("h100-80gb-sxm", "0.7.3", 256, 2048),
        ("h100-80gb-sxm", "0.6.3", 256, 512),
    ],
)
def test_choices_of_the_server(gpu: str, version: str, seqs: int, tokens: int) -> None:
    """Sequences and tokens of a step depend on the card and the version."""
    options = apply_defaults(run(gpu=gpu, engine_version=version)).options
    assert (options["max_num_seqs"], options["max_num_batched_tokens"]) == (seqs, tokens)


def test_v0_without_long_prompts_takes_them_whole() -> None:
    """A context of up to 32,768 tokens is one step, which has at least 2,048."""
    options = apply_defaults(run(engine_version="0.7.3", max_seq_len=10000)).options
    short = apply_defaults(run(engine_version="0.7.3", max_seq_len=1024)).options
    assert options["max_num_batched_tokens"] == 10000
    assert short["max_num_batched_tokens"] == 2048


def test_utilization_has_a_default_by_version() -> None:
    """The default is 0.9 until 0.19, and 0.92 since."""
    shares = [
        apply_defaults(run(engine_version=v)).options["gpu_memory_utilization"]
        for v in ("0.19.0", "0.20.0")
    ]
    assert shares == [0.9, 0.92]


@pytest.mark.parametrize(
    ("version", "most", "number"),
    [("0.7.3", 256, 35), ("0.10.0", 512, 67), ("0.11.0", 512, 134), ("0.19.0", 512, 102)],
)
def test_graphs_by_version(version: str, most: int, number: int) -> None:
    """V0 captures 35 batches, V1 67 pieces, from 0.11 whole steps as well, then fewer sizes."""
    resolved = apply_defaults(run(engine_version=version))
    assert (graphs.largest_graph(resolved), graphs.graph_count(resolved)) == (most, number)


@pytest.mark.parametrize(
    ("model", "seqs", "most"),
    [
        ("qwen3-8b", 7, 14),
        ("qwen3-8b", 400, 512),
        ("gpt-oss-20b", 400, 800),
        ("gpt-oss-20b", 900, 1024),
    ],
)
def test_v1_captures_twice_the_sequences(model: str, seqs: int, most: int) -> None:
    """Up to 512 tokens, 1,024 of gpt-oss."""
    resolved = apply_defaults(run(model, engine_version="0.19.0", max_num_seqs=seqs))
    assert graphs.largest_graph(resolved) == most


@pytest.mark.parametrize(("seqs", "most"), [(3, 3), (5, 8), (250, 256), (1000, 256)])
def test_v0_captures_batches_up_to_256(seqs: int, most: int) -> None:
    """No more than the sequences at once, in steps of 8."""
    assert graphs.largest_graph(run(engine_version="0.7.3", max_num_seqs=seqs)) == most


def test_whole_steps_are_captured_up_to_the_sequences_at_once() -> None:
    """With 256 sequences there are 51 pieces and 35 whole steps, as in logs of smaller cards."""
    assert graphs.graph_count(apply_defaults(run(gpu="l4", engine_version="0.22.1"))) == 51 + 35


def test_layers_of_stages() -> None:
    """Remaining layers go to the stages before the last; before 0.8 to the last."""
    new = run(R1, gpu="h200-141gb-sxm", tensor_parallel_size=8, pipeline_parallel_size=4)
    assert stage_layers(new) == [15, 15, 16, 15]
    assert stage_layers(replace(new, options={**new.options, "engine_version": "0.7.2"})) == [
        15,
        15,
        15,
        16,
    ]


def test_swap_space_is_v0s() -> None:
    """V0 pins 4 GiB of the host for each GPU; V1 has no swap space and refuses it."""
    memory = served(engine_version="0.7.3")
    assert [one.bytes for one in memory.items if one.place == CPU] == [4 * GIB]
    newer = served(engine_version="0.11.0", swap_space=8)
    assert not any(one.place == CPU for one in newer.items)
    assert any("swap_space is of vLLM's V0 engine" in note for note in newer.notes)


def test_versions_that_there_are_not() -> None:
    """V0 ended with 0.10, V1 began with 0.6.4; others are refused with the nearest fix."""
    with pytest.raises(InputError, match=r"vLLM 0\.11\.0 has no V0 engine"):
        run(engine_version="0.11.0", engine_generation="v0")
    with pytest.raises(InputError, match=r"vLLM 0\.6\.3 has no V1 engine"):
        run(engine_version="0.6.3", engine_generation="v1")
    with pytest.raises(InputError, match="'newest' is not a version"):
        run(engine_version="newest")


def test_v0_without_a_version_is_the_newest_that_has_it() -> None:
    """The run names the version it uses; V1 uses the newest of all."""
    file = {"model": {"name": "llama3-8b"}, "hardware": {"gpu": "h200-141gb-sxm"}}
    inference = {"engine": "vllm", "engine_generation": "v0"}
    resolved = resolve(read({**file, "inference": inference}).file)
    assert resolved.run.options["engine_version"] == "0.10.2"
    assert "inference.engine_version=0.10.2" in resolved.assumed
    newer = resolve(read({**file, "inference": {**inference, "engine_generation": "v1"}}).file)
    assert newer.run.options["engine_version"] == versions.NEWEST


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.7", (0, 7, 0)),
        ("v0.10.1.1", (0, 10, 1)),
        ("0.15.2rc1", (0, 15, 2)),
        ("~0.11.1", (0, 11, 1)),
        (">=0.21", (0, 21, 0)),
        ("~0.9/0.10", (0, 9, 0)),
        ("vLLM 0.8.5.post1", (0, 8, 5)),
    ],
)
def test_versions_as_people_write_them(text: str, number: tuple[int, int, int]) -> None:
    """Rounded versions, and signs before them, are read."""
    assert versions.parse_version(text) == number


@pytest.mark.parametrize(
    ("version", "tokens"), [("0.11.0", 32768), ("0.12.0", 16384), ("0.18.0", 65536)]
)
def test_experts_run_on_chunks_of_tokens(version: str, tokens: int) -> None:
    """A kernel call takes 32,768 tokens, then 16,384; from 0.18 on all tokens of a step."""
    resolved = apply_defaults(
        run("qwen3-30b-a3b", engine_version=version, max_num_batched_tokens=65536)
    )
    widths = next(iter(distinct_widths(resolved.arch, rank_shard(resolved, 0))))
    one = apply_defaults(run("qwen3-30b-a3b", engine_version=version, max_num_batched_tokens=1024))
    assert workspace_part(resolved, widths, 2).bytes == (
        tokens // 1024 * workspace_part(one, widths, 2).bytes
    )


@pytest.mark.parametrize(
    ("gpu", "version", "tokens", "sequences"),
    [
        ("h100-80gb-sxm", "0.8.2", 8192, 1024),
        ("a100-80gb-sxm", "0.8.2", 2048, 1024),
        ("a100-80gb-sxm", "0.8.4", 2048, 256),
        ("a100-80gb-sxm", "0.8.5", 8192, 1024),
        ("a100-80gb-sxm", "0.9.0", 2048, 256),
        ("l40s", "0.8.5", 2048, 256),
    ],
)
def test_steps_by_card(gpu: str, version: str, tokens: int, sequences: int) -> None:
    """Until 0.8.4 an H100's name makes steps large, later 70 GiB do, but not on an A100."""
    options = apply_defaults(run(gpu=gpu, engine_version=version)).options
    assert (options["max_num_batched_tokens"], options["max_num_seqs"]) == (tokens, sequences)


def test_an_engine_may_be_written_in_capitals() -> None:
    """`V1` means `v1`."""
    assert served(engine_generation="V1").figure(ACTIVATION) == served().figure(ACTIVATION)


def test_the_trial_run_of_early_v1_ends_with_logits() -> None:
    """V1 was optional before 0.8, and did not sample in its profile run."""
    early = served(engine_version="0.7.3", engine_generation="v1")
    assert early.figure(ACTIVATION) < served(engine_version="0.8.0").figure(ACTIVATION) / 3


def test_a_newer_version_is_said() -> None:
    """A version newer than the newest modelled is treated as that one, with a note."""
    notes = served(engine_version="0.40.0").notes
    assert f"vLLM 0.40.0 is modelled as {versions.NEWEST}" in notes


@pytest.mark.parametrize(
    ("model", "version", "newer"),
    [
        ("qwen3-8b", "0.21.0", False),
        ("qwen3-8b", "0.22.0", True),
        ("llama3.1-8b", "0.22.0", False),
        ("llama3.1-8b", "0.23.0", True),
        ("phi-4", "0.24.0", False),
        ("phi-4", "0.25.0", True),
        ("qwen3-30b-a3b", "0.28.0", False),
        ("qwen1.5-moe-a2.7b", "0.27.0", True),
        ("qwen3-30b-a3b", "0.29.0", True),
    ],
)
def test_which_worker_runs(model: str, version: str, newer: bool) -> None:
    """The newer GPU worker took over family by family."""
    assert versions.uses_second_runner(run(model, engine_version=version)) is newer


def test_tensor_parallelism_must_divide_the_heads() -> None:
    """The sentence names the rule and a size that works."""
    with pytest.raises(InputError, match="does not divide 32 heads; try 2 or 4"):
        run(tensor_parallel_size=3)


def test_the_command() -> None:
    """Options at vLLM's defaults are not on the command line."""
    assert served().command == ("vllm", "serve", "MODEL")
    words = served(
        tensor_parallel_size=2,
        max_seq_len=8192,
        kv_cache_dtype="fp8",
        gpu_memory_utilization=0.95,
        enforce_eager=True,
        enable_prefix_caching=False,
    ).command
    assert words[3:] == (
        "--max-model-len",
        "8192",
        "--tensor-parallel-size",
        "2",
        "--gpu-memory-utilization",
        "0.95",
        "--kv-cache-dtype",
        "fp8",
        "--enforce-eager",
        "--no-enable-prefix-caching",
    )


@pytest.mark.parametrize(("free", "others"), [(None, []), (60, ["other processes"])])
def test_other_processes_are_deducted_where_there_are_some(
    free: float | None, others: list[str]
) -> None:
    """Until 0.9.1 all memory in use is counted; an idle card has none of others."""
    found = apply_defaults(run(free=free, engine_version="0.9.0"))
    names = [part.name for part in counted_parts(found)]
    assert names[:1] == ["CUDA context"]
    assert names[1 : 1 + len(others)] == others
    assert names.count("other processes") == len(others)
