"""FSDP2's own stream of allocations: as high as its ledger, and in torch's order."""

from __future__ import annotations

from itertools import count, islice
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.step.stream import allocation_stream
from tests.random_runs.runs import run_file

STEP = ("forward", "backward", "optimizer")
SEED = 11


def runs(number: int) -> list[dict[str, Any]]:
    """Random runs of the engine; every third one on the host."""
    drawn = (run_file(SEED, index) for index in count())
    runs = list(islice((run for run in drawn if run["engine"]["type"] == "fsdp"), number))
    for run in runs[::3]:
        run["engine"]["cpu_offload"] = True
    return runs


def written(resolved: ResolvedRun) -> AllocationStream:
    """The stream that the engine's ledger is written as."""
    ledger = resolved.engine.ledger(replace(resolved.run, unrolled=True))
    return allocation_stream(ledger, int(resolved.run.micro_batches))


def live_peak(allocations: AllocationStream) -> int:
    """The most bytes that are alive after start-up."""
    alive = peak = 0
    begin = allocations.marks[0][0]
    for index, event in enumerate(allocations.events):
        alive += allocations.sizes[event] if event >= 0 else -allocations.sizes[~event]
        peak = max(peak, alive if index >= begin else 0)
    return peak


@pytest.mark.parametrize("run", runs(45), ids=lambda run: run["model"]["config"]["model_type"])
def test_a_stream_is_as_high_as_its_ledger(run: dict[str, Any]) -> None:
    """The few instants of a ledger have the same peak as all layers in turn."""
    resolved = resolve(read(run).file)
    highest = resolved.engine.ledger(resolved.run).peak(phases=STEP)
    assert live_peak(written(resolved)) == highest


def small(**engine: Any) -> ResolvedRun:
    """Three layers on four ranks."""
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "vocab_size": 4096,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    }
    return resolve(
        read(
            {
                "model": {"config": config},
                "training": {"batch_size": 1, "seq_len": 64, "precision": "bf16_mixed"},
                "parallelism": {"data_parallel_size": 4},
                "engine": {"type": "fsdp", **engine},
                "hardware": {"gpu": "h200", "num_gpus": 4},
            }
        ).file
    )


@pytest.mark.parametrize("cpu_offload", [False, True])
@pytest.mark.parametrize("precision", ["bf16_mixed", "bf16_pure", "fp32"])
@pytest.mark.parametrize("seq_len", [16, 512, 1024])
@pytest.mark.parametrize("sharding_strategy", ["full_shard", "hybrid_shard", "shard_grad_op"])
def test_a_large_head_is_as_high_in_both(
    sharding_strategy: str, seq_len: int, precision: str, *, cpu_offload: bool
) -> None:
    """A short sequence under a large vocabulary: the head's gradient does not exist while the last
    layer is gathered for backward.
    """
    engine = {"sharding_strategy": sharding_strategy, "cpu_offload": cpu_offload}
    resolved = resolve(
        read(
            {
                "model": {"name": "llama3.2-1b"},
                "training": {"batch_size": 1, "seq_len": seq_len, "precision": precision},
                "parallelism": {"data_parallel_size": 16},
                "engine": {"type": "fsdp", **engine},
                "hardware": {"gpu": "h200", "num_gpus": 16, "num_nodes": 2},
            }
        ).file
    )
    highest = resolved.engine.ledger(resolved.run).peak(phases=STEP)
    assert live_peak(written(resolved)) == highest


LAYER = 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512
ROOT = 2 * 4096 * 512 + 512


def on(allocations: AllocationStream, number: int, phase: str) -> list[int]:
    """Bytes that one CUDA stream allocates (positive) and frees in a phase, in order."""
    names = [name for _, name in allocations.marks]
    end = allocations.marks[names.index(phase)][0]
    begin = allocations.marks[names.index(phase) - 1][0]
    return [
        allocations.sizes[event] if event >= 0 else -allocations.sizes[~event]
        for event in allocations.events[begin:end]
        if allocations.streams[event if event >= 0 else ~event] == number
    ]


def test_shards_are_gathered_on_a_allocations_their_own() -> None:
    """Cast, gathered, and freed when the next unit has been copied out."""
    cast, flat = LAYER // 4 * 2, LAYER * 2
    begin = [ROOT // 4 * 2, ROOT * 2, -ROOT // 4 * 2, cast, flat, -cast, -ROOT * 2]
    then = [cast, flat, -cast, -flat]
    assert on(written(small()), 1, "s1.a0.fwd") == [*begin, *then, *then, -flat]


def test_in_backward_the_next_layer_is_gathered_first() -> None:
    """The root's buffer is freed at once, each layer's when it has been copied out."""
    cast, flat, root = LAYER // 4 * 2, LAYER * 2, ROOT // 4 * 2
    layers = [cast, flat, -cast, -flat] * 3
    assert on(written(small()), 1, "s1.a0.bwd") == [root, ROOT * 2, -root, -ROOT * 2, *layers]


def test_a_reduced_gradient_is_cast_where_it_is_reduced() -> None:
    """The output in 16 bits, its cast to the dtype of the shards, which stays."""
    reduced = [[n // 4 * 2, n // 4 * 4, -(n // 4) * 2] for n in (LAYER, LAYER, LAYER, ROOT)]
    assert on(written(small()), 2, "s1.a0.bwd") == [size for unit in reduced for size in unit]


def test_one_rank_alone_casts_parameter_by_parameter() -> None:
    """Nothing is gathered: no stream but torch's own makes anything before gradients."""
    allocations = written(small(sharding_strategy="no_shard"))
    assert not on(allocations, 1, "s1.a0.fwd")
    table, norm = 4096 * 512 * 2, 512 * 2
    assert on(allocations, 0, "s1.a0.fwd")[:4] == [table, table, norm, -table]


def test_no_tensor_is_made_or_freed_twice() -> None:
    """Every tensor is made once, and freed once or never."""
    rng = Random(SEED)
    for run in rng.sample(runs(20), 6):
        allocations = written(resolve(read(run).file))
        alive: set[int] = set()
        freed: set[int] = set()
        for event in allocations.events:
            if event >= 0:
                assert event not in freed
                alive.add(event)
                freed.add(event)
            else:
                alive.remove(~event)
