"""TensorRT-LLM, both backends: figures from logs and source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator import estimate
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.run.served import ServerMemory
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving.tensorrt_llm.engine import serve
from gpu_mem_calculator.serving.tensorrt_llm.shards import rank_shard
from gpu_mem_calculator.tools.read import read

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "ground_truth/serving_tensorrt_llm.jsonl")
    .read_text()
    .splitlines()
]


def config(model: str, gpu: str = "h100-80gb-sxm", **inference: Any) -> dict[str, Any]:
    """A run file as a mapping."""
    return {
        "model": {"name": model},
        "inference": {"engine": "tensorrt_llm", **inference},
        "hardware": {"gpu": gpu},
    }


def served(model: str, gpu: str = "h100-80gb-sxm", **inference: Any) -> ServerMemory:
    """The memory of one rank."""
    return serve(resolve(read(config(model, gpu, **inference)).file).run)


def item(memory: ServerMemory, name: str) -> int:
    """Bytes of the item with this name."""
    return next(one.bytes for one in memory.items if one.name == name)


def errors(figure: str) -> list[float]:
    """Errors of a figure in each log, in percent."""
    percents = []
    for row in ROWS:
        if figure in row["measured"]:
            result = estimate(row["config"])
            value = row["measured"][figure]
            assert result.serving is not None
            percents.append(abs(getattr(result.serving, figure) - value) / value * 100)
    return percents


def test_weights_are_those_of_the_logs() -> None:
    """Weights of engines and checkpoints agree with 8 logs within 1 %."""
    assert max(errors("weights_bytes")) < 1.0


def test_activations_are_those_of_the_logs() -> None:
    """Execution contexts and one profile run of the PyTorch backend agree with the logs."""
    percents = errors("activation_bytes")
    assert sum(percents) / len(percents) < 4.0
    assert max(percents) < 15.0


def test_pools_are_those_of_the_logs() -> None:
    """Tokens of the pool follow from the size of the card alone."""
    percents = errors("kv_tokens")
    assert sum(percents) / len(percents) < 3.0
    assert max(percents) < 6.0


def test_the_decoder_of_an_engine_is_exact() -> None:
    """0.14 logs 5.76 GB for the decoder and 2.66 GB for buffers of 2,048 sequences."""
    memory = served(
        "qwen2.5-0.5b", "rtx-a4000", engine_version="0.14.0", dtype="fp16", quantization="int8"
    )
    assert item(memory, "decoder") / GIB == pytest.approx(5.76, abs=0.005)
    assert item(memory, "runtime buffers") / GIB == pytest.approx(2.66, abs=0.006)


def test_an_engine_of_one_sequence_has_a_small_decoder() -> None:
    """0.13 logs 2.98 MB and 648 KB for one sequence of 2,048 tokens."""
    memory = served(
        "glm-4-9b",
        engine_version="0.13.0",
        dtype="fp16",
        quantization="int8",
        max_seq_len=2048,
        max_num_seqs=1,
    )
    assert item(memory, "decoder") / MIB == pytest.approx(2.98, abs=0.01)
    assert item(memory, "runtime buffers") / 1024 == pytest.approx(648.06, rel=0.015)


def test_the_backend_is_the_versions_own() -> None:
    """Engines are the default before 1.0, PyTorch since; the run file can choose either."""
    old, new = served("llama3.1-8b", engine_version="0.21.0"), served("llama3.1-8b")
    chosen = served("llama3.1-8b", engine_generation="tensorrt")
    names = [{one.name for one in memory.items} for memory in (old, new, chosen)]
    assert "execution context" in names[0]
    assert any(name.startswith("CUDA graphs: ") for name in names[1])
    assert "execution context" in names[2]


def test_blocks_are_rounded_as_the_version_does() -> None:
    """Tokens are rounded up to a block until 1.1, down since 1.2."""
    for version, tokens in (("1.1.0", 10016), ("1.2.1", 9984)):
        assert (
            served("llama3.1-8b", engine_version=version, max_total_tokens=10000).tokens == tokens
        )


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("llama2-7b", {"engine_version": "0.8.0", "kv_cache_dtype": "fp16"}, 524288),
        ("llama3.1-8b", {}, 131072),
        ("llama3.1-8b", {"kv_cache_dtype": "fp8"}, 65536),
        ("llama3.1-8b", {"kv_cache_dtype": "nvfp4"}, 36864),
        ("llama3.1-8b", {"tensor_parallel_size": 4}, 32768),
        ("llama3.1-8b", {"tensor_parallel_size": 16}, 16384),  # more ranks than key-value heads
        ("deepseek-v3", {"tensor_parallel_size": 8}, 70272),  # a latent is not cut
        ("gpt-oss-120b", {}, 73728),  # windows change nothing unless they are asked for
    ],
)
def test_a_token_takes_what_the_architecture_says(
    model: str, options: dict[str, Any], expected: int
) -> None:
    """Bytes of a token are exactly those in the logs."""
    assert served(model, "h200", **options).token_bytes == expected


def test_windows_share_the_pool_equally() -> None:
    """Layers with windows get half of the pool, the others half: resource_manager.py."""
    full = served("gpt-oss-20b", "h200", quantization="mxfp4")
    windowed = served(
        "gpt-oss-20b", "h200", quantization="mxfp4", max_attention_window=[128, 131072]
    )
    assert windowed.token_bytes * 2 == full.token_bytes
    assert windowed.tokens == pytest.approx(full.tokens, rel=1e-3)
    assert windowed.sequences(1024) == pytest.approx(full.sequences(1024), rel=0.05)


def test_beams_multiply_a_sequence() -> None:
    """Every beam takes separate blocks."""
    one, four = served("llama3.1-8b"), served("llama3.1-8b", max_beam_width=4)
    assert four.sequences(1024) == pytest.approx(one.sequences(1024) / 4, rel=0.05)


def test_stages_have_the_whole_model_together() -> None:
    """Layers are split as evenly as possible; the first stages have one more."""
    run = resolve(read(config("qwen2.5-0.5b", pipeline_parallel_size=5)).file).run
    places = [list(rank_shard(replace(run, stage=stage)).places) for stage in range(5)]
    assert [len(layers) for layers in places] == [5, 5, 5, 5, 4]
    assert [place for layers in places for place in layers] == list(range(24))


def test_a_draft_takes_weights_and_cache() -> None:
    """The draft's keys and values share the model's blocks."""
    alone = served("llama3.1-8b")
    with_draft = served(
        "llama3.1-8b",
        speculative_method="draft_target",
        speculative_model="llama3.2-1b",
        num_speculative_tokens=4,
    )
    assert with_draft.token_bytes == alone.token_bytes + 16 * 2 * 8 * 64 * 2
    assert item(with_draft, "draft model") == pytest.approx(1235814400 * 2, rel=1e-6)


def test_more_tokens_a_pass_leave_less_for_the_cache() -> None:
    """max_num_tokens decides the size of the profile run."""
    small = served("llama3.1-8b", max_num_batched_tokens=4096)
    large = served("llama3.1-8b", max_num_batched_tokens=16384)
    assert large.figure("activation") == 4 * small.figure("activation")
    assert large.tokens < small.tokens


def test_no_graphs_where_none_are_wanted() -> None:
    """enforce_eager becomes `cuda_graph_config: null`."""
    assert served("llama3.1-8b", enforce_eager=True).figure("graph") == 0


def test_the_command_says_what_was_asked_for() -> None:
    """Options without a flag are in a note."""
    memory = served("llama3.1-8b", tensor_parallel_size=2, kv_cache_dtype="fp8", max_num_seqs=64)
    assert memory.command[:2] == ("trtllm-serve", "MODEL")
    assert " ".join(memory.command).count("--tp_size 2") == 1
    assert any("dtype: fp8" in note for note in memory.notes)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kv_cache_dtype": "int8"}, "is not stored by TensorRT-LLM's pytorch backend"),
        ({"quantization": "nf4"}, "is not served by TensorRT-LLM's pytorch backend"),
        ({"engine_version": "0.5.0"}, "is not a version of TensorRT-LLM that is modelled"),
        ({"engine_generation": "v1"}, "is not a backend of TensorRT-LLM"),
        ({"max_num_seqs": 9000}, "must not be more than max_num_batched_tokens"),
        ({"speculative_method": "draft_target"}, "needs inference.speculative_model"),
        (
            {"tensor_parallel_size": 2, "expert_parallel_size": 4},
            "must divide tensor_parallel_size",
        ),
        ({"page_size": 16}, "is not an option of TensorRT-LLM"),
    ],
)
def test_what_it_refuses_is_said(options: dict[str, Any], sentence: str) -> None:
    """Each refusal is one sentence with the rule."""
    with pytest.raises(InputError, match=sentence):
        estimate(config("llama3.1-8b", **options))


def test_a_card_that_is_too_small_is_said() -> None:
    """The engine of a log that ran out of memory on 6 GB (available 0.03 GiB) does not start."""
    row = next(row for row in ROWS if row["measured"].get("fits") is False)
    result = estimate(row["config"])
    assert not result.fits_on_gpu
    assert result.serving is not None
    assert "buffers + profiling need" in result.serving.problem
