"""Streams of several shapes are joined without a tensor that is lost or freed twice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.stage_requests import ShapeStreams, stage_requests
from gpu_mem_calculator.pytorch.replay.replays import replay
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.run.recompute import NONE
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names
from gpu_mem_calculator.training.lengths.batches import BatchShape
from gpu_mem_calculator.training.lengths.shaped_stream import joined_stream
from tests.golden.stored_runs import HERE, run_file, stored_settings

FILES = [path for name in engine_names() if (path := HERE / "training" / f"{name}.txt").exists()]
SETTINGS = [one for path in FILES for one in stored_settings(path) if "model.case" in one]
START = "model.name=gpt2 num_gpus=4 batch_size=2"
OTHER = (
    "gradient_accumulation_steps=3",
    "gradient_accumulation_steps=7",
    "gradient_accumulation_steps=3 activation_checkpointing=full",
    "gradient_accumulation_steps=3 activation_checkpointing=selective",
    "zero_grad=before_backward gradient_accumulation_steps=3",
    "zero_grad=before_forward gradient_accumulation_steps=2",
    "pipeline_parallel_size=2 gradient_accumulation_steps=4",
)
FEW = [*SETTINGS[::40], *(f"type={e} {START} {o}" for e in engine_names() for o in OTHER)]
REST = [pytest.param(one, marks=pytest.mark.proof) for one in SETTINGS if one not in FEW]


def _resolved(settings: str) -> ResolvedRun | None:
    try:
        found = resolve(read(run_file(settings)).file)
    except InputError:
        return None
    return None if found.run.new_tokens is not None or found.run.rollout is not None else found


def _requests(stream: AllocationStream) -> list[tuple[int, int]]:
    """Each event as the size that it allocates or frees, and the CUDA stream."""
    queues = stream.streams or [0] * len(stream.sizes)
    return [
        (stream.sizes[e], queues[e]) if e >= 0 else (-stream.sizes[~e], queues[~e])
        for e in stream.events
    ]


@pytest.mark.parametrize("settings", [*FEW, *REST])
def test_equal_batches_give_the_usual_stream(settings: str) -> None:
    """Three steps of one shape are what is written for it."""
    found = _resolved(settings)
    if found is None:
        return
    run = found.run
    asked = stage_requests(found, 0)
    shape = BatchShape(int(run.batch), int(run.seq), run.padded)
    order = ((shape,) * asked.micro_batches,) * 3
    joined = joined_stream(order, ShapeStreams(found.engine.ledger, run, 0))
    assert _requests(joined) == _requests(asked.usual)
    assert joined.marks == asked.usual.marks
    assert joined.empties == asked.usual.empties
    assert replay(joined, found.allocator) == replay(asked.usual, found.allocator)


@pytest.mark.parametrize("settings", [*FEW, *REST])
def test_batches_of_many_shapes_lose_nothing(settings: str) -> None:
    """Every free is of a live tensor, and after a step what is alive does not grow."""
    found = _resolved(settings)
    if found is None or found.run.record is not None:
        return
    run = replace(found.run, labelled=None)
    seq, count = int(run.seq), int(run.micro_batches)
    masked = found.engine.transformers and not run.compile
    always = count > 1 and run.recompute != NONE  # as runfile/resolve/lengths.py has it
    shapes = [
        BatchShape(
            1 + number % 2, max(seq // (1 + number % 3), 1), masked and (always or number % 2 == 1)
        )
        for number in range(5)
    ]
    order = tuple(tuple(shapes[(step + place) % 5] for place in range(count)) for step in range(9))
    joined = joined_stream(order, ShapeStreams(found.engine.ledger, run, 0))
    alive: set[int] = set()
    left: list[int] = []
    ends = [end for end, name in joined.marks if name.endswith(".opt")]
    for at, event in enumerate(joined.events, 1):
        if event >= 0:
            assert event not in alive
            alive.add(event)
        else:
            alive.remove(~event)
        if at in ends:
            left.append(len(alive))
    assert left[2:4] == left[7:9], left  # of the same batches
    assert replay(joined, found.allocator).failed_at is None
