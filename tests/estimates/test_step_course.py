"""The course of a step: layer by layer, and at its highest moment the ledger's bytes."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from gpu_mem_calculator.estimates.calculator import STEP, Estimate, full_estimate
from gpu_mem_calculator.estimates.step_course import StepCourse, step_course
from gpu_mem_calculator.ledger.ledger import GRAD
from gpu_mem_calculator.ledger.units import MIB
from tests.golden.stored_runs import run_file

RUNS = (
    "type=pytorch_ddp model.name=gpt2 num_gpus=2",
    "type=pytorch_ddp model.name=gpt2 num_gpus=2 gradient_accumulation_steps=5",
    "type=pytorch_ddp model.name=gpt2 num_gpus=2 recompute=full r=8",
    "type=fsdp model.name=gpt2 num_gpus=4",
    "type=fsdp fsdp_version=1 model.name=gpt2 num_gpus=4",
    "type=deepspeed zero_stage=0 model.name=gpt2 num_gpus=4",
    "type=deepspeed zero_stage=2 model.name=gpt2 num_gpus=4 gradient_accumulation_steps=2",
    "type=deepspeed zero_stage=3 model.name=gpt2 num_gpus=4",
    "type=megatron_lm model.name=gpt2 num_gpus=4 pipeline_parallel_size=2 "
    "gradient_accumulation_steps=4",
    "type=megatron_deepspeed model.name=gpt2 num_gpus=4",
)
FSDP = RUNS[3]
PIPELINE = (
    "type=megatron_lm model.name=llama3-8b num_gpus=8 tensor_parallel_size=2 "
    "pipeline_parallel_size=2 gradient_accumulation_steps=4"
)
LAYERS = 12


@cache
def taken(settings: str) -> tuple[Estimate, StepCourse]:
    """An estimate by the ledger, and the course of its step."""
    found = full_estimate(run_file(settings), replay=False)
    course = step_course(found.resolved, found.result.busiest_stage, found.ledger)
    assert course is not None
    return found, course


def last(course: StepCourse) -> int:
    """The number of the last stretch."""
    return len(course.shape.stretches) - 1


@pytest.mark.parametrize("settings", RUNS)
def test_the_highest_moment_is_the_ledgers(settings: str) -> None:
    """Whatever the engine: the same bytes, and never more at another moment."""
    estimate, course = taken(settings)
    peak = int(estimate.ledger.peak(phases=STEP))
    for named in (False, True):
        moments = course.moments(0, last(course), 1000, named=named)
        assert max(one.bytes for one in moments) == peak


@pytest.mark.parametrize("settings", RUNS)
def test_names_add_up_to_kinds(settings: str) -> None:
    """With and without names a moment has the same bytes of each kind."""
    _, course = taken(settings)
    end = last(course)
    pairs = zip(*(course.moments(0, end, 100, named=named) for named in (True, False)), strict=True)
    for one, other in pairs:
        sizes: list[dict[str, int]] = []
        for moment in (one, other):
            sizes.append({})
            for kind, _, size in moment.rows:
                sizes[-1][kind] = sizes[-1].get(kind, 0) + size
        assert {k: v for k, v in sizes[0].items() if v} == {k: v for k, v in sizes[1].items() if v}


@pytest.mark.parametrize("settings", RUNS)
def test_every_layer_runs_forward_and_back(settings: str) -> None:
    """Layers count up, then down; the optimizer's step is last."""
    estimate, course = taken(settings)
    layers = estimate.result.stages[estimate.result.busiest_stage].num_layers
    first = [one for one in course.shape.stretches if one.micro_batch in (0, -1)]
    for phase, numbers in (("forward", range(layers)), ("backward", range(layers)[::-1])):
        blocks = [one.block for one in first if one.phase == phase and (one.block or 0) >= 0]
        assert [block for block in blocks if block is not None] == list(numbers)
    assert course.shape.stretches[-1].phase == "optimizer" or "megatron" in settings


def test_activations_are_a_triangle() -> None:
    """Each layer adds as many in forward as any other, and frees them in backward."""
    _, course = taken("type=fsdp model.name=gpt2 num_gpus=4")
    heights = {"forward": [0] * LAYERS, "backward": [0] * LAYERS}
    for one in course.moments(0, last(course), 1000, named=True):
        block = one.stretch.block
        if block is not None and block >= 0:
            kept = sum(size for _, name, size in one.rows if name.endswith("kept for backward"))
            heights[one.stretch.phase][block] = max(kept, heights[one.stretch.phase][block])
    up = [b - a for a, b in pairwise(heights["forward"])]
    assert max(up) - min(up) <= MIB < min(up)
    for ahead, back in zip(heights["forward"], heights["backward"], strict=True):
        assert abs(ahead - back) <= 2 * MIB + min(up)


def test_of_many_micro_batches_the_first_and_the_last_are_drawn() -> None:
    """Those between them are alike; under a pipeline all of the stream are drawn."""
    _, course = taken(RUNS[1])
    assert {one.micro_batch for one in course.shape.stretches} == {0, 3, -1}
    _, course = taken(PIPELINE)
    assert {0, 1, 2, 3} <= {one.micro_batch for one in course.shape.stretches}


def test_a_part_has_more_moments_of_each_layer() -> None:
    """An enlarged layer shows which tensor is made, and the same highest moment."""
    _, course = taken(FSDP)
    whole = course.moments(0, last(course), 100, named=True)
    part = course.moments(5, 6, 100, named=True, parts=True)
    assert {one.first for one in part} == {5, 6}
    assert 50 <= len(part) <= 100
    assert all(one.part for one in part)
    made = {one.doing for one in part}
    assert len(made) > 15
    assert "attn.out" in made
    for stretch in (5, 6):
        highest = max(one.bytes for one in part if one.first == stretch)
        assert highest == max(one.bytes for one in whole if one.first == stretch)


def test_few_columns_stand_for_several_layers() -> None:
    """At most as many as asked for, and the highest is still there."""
    estimate, course = taken(FSDP)
    moments = course.moments(0, last(course), 10, named=False)
    assert len(moments) <= 10
    assert moments[0].first == 0
    assert moments[-1].last == last(course)
    assert max(one.bytes for one in moments) == int(estimate.ledger.peak(phases=STEP))


def test_gradients_grow_in_backward() -> None:
    """Of DDP every layer leaves its own until the step."""
    _, course = taken(RUNS[1])
    found = course.moments(0, last(course), 1000, named=False)
    grads = [
        sum(size for kind, _, size in one.rows if kind == GRAD)
        for one in found
        if one.stretch.phase == "backward" and one.stretch.micro_batch == 0
    ]
    assert grads[0] < grads[LAYERS // 2] < grads[-1]
