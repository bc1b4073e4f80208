"""llama.cpp: figures of public logs, and of llama.cpp's code at several builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import CPU
from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.run.served import POOL, WEIGHTS, ServerMemory
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving.llamacpp.activations import compute_buffers
from gpu_mem_calculator.serving.llamacpp.cache import CacheCells
from gpu_mem_calculator.serving.llamacpp.engine import serve
from gpu_mem_calculator.serving.llamacpp.layout import DeviceBytes, ServerLayout, device_bytes
from gpu_mem_calculator.serving.llamacpp.options import server_layout
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled

ROWS = Path(__file__).parents[1] / "ground_truth"
PARTS = 6  # in which the buffers of llama.cpp's own code are compared


def file(model: str, gpus: int = 1, gpu: str = "h200", **inference: Any) -> dict[str, Any]:
    """A run file."""
    return {
        "model": {"name": model},
        "inference": {"engine": "llamacpp", **inference},
        "hardware": {"gpu": gpu, "num_gpus": gpus},
    }


def run(model: str, gpus: int = 1, gpu: str = "h200", **inference: Any) -> Run:
    """A run of the engine."""
    return resolve_inference(read(file(model, gpus, gpu, **inference)).file).run


def layout(model: str, gpus: int = 1, **inference: Any) -> ServerLayout:
    """The layout of a run's server."""
    return server_layout(run(model, gpus, **inference))


def served(model: str, gpus: int = 1, **inference: Any) -> list[ServerMemory]:
    """Every GPU of a server."""
    one = run(model, gpus, **inference)
    return [serve(replace(one, stage=gpu)) for gpu in range(gpus)]


def problem(**inference: Any) -> str:
    """The first problem of a run of Llama-3-8B."""
    with pytest.raises(InputError) as error:
        run(**{"model": "llama3-8b", **inference})
    return error.value.problems[0]


def lines(name: str) -> list[dict[str, Any]]:
    """Rows of a file."""
    return [json.loads(line) for line in (ROWS / f"{name}.jsonl").read_text().splitlines()]


def test_public_logs() -> None:
    """Buffers of 32 start-ups, b2570 to b9400: the cache to the byte that a log shows, compute
    buffers too, weights but for a file that someone mixed otherwise.
    """
    limits = {
        "weights_bytes": 0.01,
        "kv_pool_bytes": 1e-5,
        "activation_bytes": 0.003,
        "host_compute_bytes": 0.001,
    }
    for row in lines("serving_llamacpp"):
        devices = device_bytes(server_layout(resolve_inference(read(row["config"]).file).run))
        buffers, logged = devices[row["rank"]], {**row["measured"], **row["environment"]}
        found = {
            "weights_bytes": buffers.weights,
            "kv_pool_bytes": buffers.cache,
            "activation_bytes": buffers.compute,
            "host_compute_bytes": devices[-1].compute,
        }
        for key, most in limits.items():
            if key in logged:
                assert found[key] == pytest.approx(logged[key], rel=most), (row["id"], key)


@pytest.mark.parametrize("part", sampled(range(PARTS), keep=2))
def test_compute_buffers_of_its_own_code(part: int) -> None:
    """llama.cpp's graphs, scheduler and allocator, run on devices that report sizes alone: 42
    models, six builds, and every option that changes a buffer.
    """
    wrong = []
    for row in lines("llamacpp_buffers")[part::PARTS]:
        one = layout(row["model"], row["gpus"], **row["inference"])
        sizes = [
            size / MIB for size in compute_buffers(one.file, one.setting, one.devices, whole=True)
        ]
        logged = [*row["gpu_mib"], row["host_mib"]]
        if any(abs(a - b) > 0.0151 for a, b in zip(sizes, logged, strict=True)):
            wrong.append((row["model"], row["inference"], sizes, logged))
    assert not wrong


def test_equal_layers_may_be_left_out() -> None:
    """A search has two layers of each end of equal ones: within a few percent of all."""
    for model, options in (
        ("llama3-70b", {}),
        ("gemma3-27b", {}),
        ("qwen3-30b-a3b", {}),
        ("llama3-8b", {"n_gpu_layers": 12}),
        ("jamba-v0.1", {}),
    ):
        one = layout(model, max_seq_len=8192, **options)
        thin, whole = (compute_buffers(one.file, one.setting, one.devices, whole=w) for w in (0, 1))
        assert list(thin) == pytest.approx(list(whole), rel=0.05), model


def test_cache_by_type() -> None:
    """A cell of Llama-3-8B: 1,024 keys and values in each of 32 layers, with their scales."""
    each = {"f16": 2048 + 2048, "q8_0": 2 * 1088, "q4_0": 2 * 576, "q5_1": 2 * 768}
    for kind, size in each.items():
        one = served(
            "llama3-8b", max_seq_len=8192, cache_type_k=kind, cache_type_v=kind, flash_attn=True
        )[0]
        assert one.token_bytes == 32 * size
        assert one.pool_bytes == 32 * size * 8192


def test_slots_share_one_cache_or_have_one_each() -> None:
    """Four slots and one cache by default; else the context of each slot is padded to 256."""
    auto = layout("llama3-8b", max_seq_len=10000).cells
    assert (auto.context, auto.sequence, auto.slots, auto.streams) == (10240, 10240, 4, 1)
    apart = layout("llama3-8b", max_seq_len=10000, max_num_seqs=3).cells
    assert (apart.context, apart.sequence, apart.slots, apart.streams) == (10752, 3584, 3, 3)
    older = layout("llama3-8b", max_seq_len=10000, engine_version="b5000").cells
    assert (older.context, older.slots, older.streams) == (10016, 1, 1)


def test_windows_have_separate_cells() -> None:
    """Gemma 3: 1,024 tokens and a micro-batch, padded to 256, in five of six layers; all cells
    before b5429 and with --swa-full.
    """
    found = layout("gemma3-27b", max_seq_len=32768, max_num_seqs=1).cells
    assert (found.size, found.window) == (32768, 1536)
    full = layout("gemma3-27b", max_seq_len=32768, max_num_seqs=1, swa_full=True)
    assert full.cells.window == 32768
    old = layout("gemma3-27b", max_seq_len=32768, engine_version="b5428")
    assert (
        device_bytes(old)[0].cache == device_bytes(full)[0].cache == 62 * 16 * 128 * 2 * 2 * 32768
    )


def test_a_latent_cache_has_keys_only() -> None:
    """DeepSeek-V3: 576 values a token and layer; b7831 had the latent's 512 as well."""
    new, old = (
        served("deepseek-v3", 8, max_seq_len=4096, engine_version=b) for b in ("b7832", "b7831")
    )
    assert sum(one.token_bytes for one in new) == 61 * 576 * 2
    assert sum(one.token_bytes for one in old) == 61 * (576 + 512) * 2


def test_states_are_kept_for_every_slot() -> None:
    """Mamba-2 2.7B: fp32, 3 x 5,376 of the convolution and 128 x 5,120 of the scan."""
    one = served("mamba2-2.7b", max_seq_len=4096, max_num_seqs=3)[0]
    assert one.pool_bytes == 64 * 3 * 4 * (3 * 5376 + 128 * 5120)
    assert one.token_bytes == 0


def test_a_tied_head_is_a_copy() -> None:
    """Gemma's embedding stays on the host; the head is a second one in the GPU."""
    devices = device_bytes(layout("gemma-2b", quantization="q8_0", max_seq_len=2048))
    embedding = 256000 * 2048 // 32 * 34
    assert devices[-1].weights == embedding
    whole = sum(t.bytes for t in layout("gemma-2b", quantization="q8_0").file.tensors())
    assert devices[0].weights == pytest.approx(whole, abs=128 * 200)


def test_parts_add_up() -> None:
    """What GPUs and host have is all the model's bytes, and every cell."""
    parts = served("llama3-8b", 2, max_seq_len=8192, n_gpu_layers=20)
    weights = sum(i.bytes for one in parts for i in one.items if i.figure == WEIGHTS)
    model = sum(t.bytes for t in layout("llama3-8b").file.tensors())
    assert weights == pytest.approx(model, abs=128 * 300)
    cells = sum(i.bytes for one in parts for i in one.items if i.figure == POOL)
    assert cells == 8192 * 131072
    assert any(i.place == CPU and i.figure == POOL for i in parts[0].items)


def test_flash_attention_is_automatic() -> None:
    """On where CUDA has a kernel for the heads and the cache's types, off before b6325."""
    assert layout("llama3-8b").flash
    assert not layout("llama3-8b", engine_version="b6324").flash
    assert not layout("llama3-8b", cache_type_k="q8_0").flash
    assert layout("deepseek-v3", 8).flash


def test_command() -> None:
    """The words that start the server; a default is left out."""
    one = served(
        "llama3-8b",
        2,
        max_seq_len=4096,
        max_num_seqs=2,
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        tensor_split=[2, 1],
        n_ubatch=1024,
    )[0]
    assert " ".join(one.command) == (
        "llama-server -m PATH-OF-A-Q4_K_M-CHECKPOINT.gguf -c 4096 -ngl all -np 2 -b 2048 "
        "-ub 1024 -ctk q8_0 -ctv q8_0 -ts 2,1"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine_version": "0.2"}, "not a build of llama.cpp"),
        ({"quantization": "awq"}, "not a GGUF file type"),
        ({"cache_type_v": "q8_0", "flash_attn": False}, "needs flash attention"),
        ({"cache_type_k": "fp8"}, "must be of"),
        ({"kv_cache_dtype": "fp8"}, "not stored by llama.cpp"),
        ({"split_mode": "row"}, "CUDA has it no more"),
        ({"split_mode": "row", "engine_version": "b9000"}, "not modelled"),
        ({"tensor_split": [1, 2]}, "for each of the 1 GPUs"),
        ({"split_mode": "none", "main_gpu": 1}, "must be less than 1"),
        ({"n_parallel": 2, "max_num_seqs": 3}, "give one"),
        ({"model": "opt-1.3b"}, "no GGUF form"),
        ({"model": "pythia-2.8b", "cache_type_k": "q8_0"}, "do not divide a head of 80"),
        ({"gpu_memory_utilization": 0.9}, "not an option of llama.cpp"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    """A sentence for everything that llama.cpp would not do."""
    assert words in problem(**options)


def test_a_newer_build_is_said() -> None:
    """The newest that is modelled is taken."""
    notes = served("llama3-8b", engine_version="b20000", max_seq_len=4096)[0].notes
    assert any("the newest that is" in note for note in notes)


def test_devices_add_up() -> None:
    """A device's total is its parts."""
    assert DeviceBytes(1, 2, 3, 4).total == 10


@pytest.mark.parametrize(("streams", "cells"), [(1, 8192), (4, 2048)])
def test_a_stream_has_the_whole_context_or_one_sequence(streams: int, cells: int) -> None:
    """4 slots of 2,048 tokens: one cache of all 8,192, or four of 2,048."""
    assert CacheCells(context=8192, sequence=2048, slots=4, streams=streams).size == cells


def test_older_builds_cache_the_keys_and_values_of_every_head() -> None:
    """DeepSeek before b5137: 61 layers x 128 heads x (192 + 128) elements, 4.8 MB a token, against
    576 elements a layer; kv_b is one matrix (ollama/ollama#8447).
    """
    options = {"quantization": "q4_k_m", "max_seq_len": 2048, "n_parallel": 1, "n_gpu_layers": 1}
    old = device_bytes(layout("deepseek-v3", engine_version="b4327", flash_attn=True, **options))
    new = device_bytes(layout("deepseek-v3", engine_version="b5137", **options))
    assert old[0].cache == 160 * MIB
    assert new[0].cache < old[0].cache / 30
    assert old[0].weights == pytest.approx(7106.67 * MIB, abs=0.01 * MIB)
    assert not layout("deepseek-v3", engine_version="b4327", flash_attn=None, **options).flash
