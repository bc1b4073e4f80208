"""The search: arrays give what single set-ups give, and its rules are those of the engines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from msgspec.structs import replace

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.memory import highest_stage
from gpu_mem_calculator.advice.planner.training.search import at_sizes, evaluate, search
from gpu_mem_calculator.advice.planner.training.space import structures
from gpu_mem_calculator.advice.planner.training.structures import Structure
from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.estimates.margin import margin_of
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.timing.training.step import step_seconds
from tests.corpus import sampled

H100 = "h100-80gb-sxm"


def question(
    model: str = "llama3.1-8b",
    gpus: int = 64,
    batch: int = 256,
    engine: str = "megatron_lm",
    seq: int = 8192,
) -> PlanQuestion:
    """A question about one engine."""
    return PlanQuestion(
        model={"name": model},
        hardware={"gpu": H100, "num_gpus": gpus},
        seq_len=seq,
        global_batch=batch,
        engines=(engine,),
    )


def some_structures(asked: PlanQuestion, step: int) -> Iterator[Structure]:
    """Every `step`-th structure of a question."""
    return islice(structures(asked), 0, None, step)


@pytest.mark.parametrize(
    ("engine", "model", "gpus", "batch", "seq", "step"),
    sampled(
        [
            ("megatron_lm", "llama3.1-8b", 64, 256, 8192, 23),
            ("megatron_lm", "mixtral-8x7b", 64, 256, 8192, 43),
            ("megatron_lm", "llama3.1-405b", 512, 256, 8192, 31),
            ("pytorch_ddp", "gpt2", 2, 8, 512, 5),
            ("fsdp", "llama3.2-1b", 8, 64, 4096, 7),
            ("fsdp", "mixtral-8x7b", 16, 64, 1024, 19),
            ("deepspeed", "llama3.2-1b", 8, 64, 2048, 5),
            ("deepspeed", "gpt-oss-20b", 8, 16, 2048, 8),
            ("megatron_deepspeed", "llama3.1-8b", 8, 32, 2048, 3),
            ("megatron_deepspeed", "gpt2", 4, 8, 512, 5),
        ],
        keep=5,
    ),
)
def test_arrays_give_what_single_set_ups_give(
    engine: str, model: str, gpus: int, batch: int, seq: int, step: int
) -> None:
    """Bytes and seconds are equal to the last bit, and so is what the engine accepts."""
    random = np.random.default_rng(7)
    for structure in some_structures(question(model, gpus, batch, engine, seq), step):
        arrays = evaluate(structure, batch)
        places = list(zip(arrays.pipes.tolist(), arrays.ranks.tolist(), strict=True))
        assert places == sorted(set(places))
        machine = machine_of(structure.resolved.hardware)
        count = len(structure.pipes) * len(structure.ranks)
        chosen = {divmod(int(n), len(structure.ranks)) for n in random.choice(count, 25)}
        for pipe, rank in sorted({*chosen, *places[:: max(len(places) // 6, 1)]}):
            resolved = at_sizes(structure, structure.sizes(pipe, rank), batch)
            assert ((pipe, rank) in places) == (resolved is not None)
            if resolved is None:
                continue
            place = places.index((pipe, rank))
            peak = highest_stage(resolved)
            assert arrays.allocated[place] == peak
            outside = sum(size for _, size, _ in resolved.outside_torch)
            share = margin_of(resolved.run, engine).share
            assert arrays.total[place] == peak + int(peak * share) + outside
            seconds = step_seconds(resolved.run, engine, machine).estimate
            assert float(arrays.seconds[place]) == float(seconds)


def test_buffers_of_overlapped_collectives_grow_with_the_micro_batch() -> None:
    """They are outside torch, so each size has its own."""
    asked = question("llama3.1-8b", 8, 32)
    fix = {"engine.tp_comm_overlap": True, "parallelism.tensor_parallel_size": 8}
    for structure in some_structures(replace(asked, fix=fix), 7):
        arrays = evaluate(structure, 32)
        for place in range(0, len(arrays.total), 5):
            sizes = structure.sizes(int(arrays.pipes[place]), int(arrays.ranks[place]))
            resolved = at_sizes(structure, sizes, 32)
            assert resolved is not None
            peak, share = highest_stage(resolved), margin_of(resolved.run, "megatron_lm").share
            outside = sum(size for _, size, _ in resolved.outside_torch)
            assert arrays.total[place] == peak + int(peak * share) + outside


@pytest.mark.parametrize(
    "engine",
    sampled(["megatron_lm", "fsdp", "deepspeed", "megatron_deepspeed", "pytorch_ddp"], keep=2),
)
def test_a_structure_takes_the_same_whatever_was_searched_before(engine: str) -> None:
    """What structures share is the same for all of them: loss, optimizer, sharding told apart."""
    several = list(structures(question("gpt2", 8, 16, engine, 512)))[::-3]
    forget()
    after = [evaluate(structure, 16) for structure in several]
    for structure, found in zip(several, after, strict=True):
        forget()
        alone = evaluate(structure, 16)
        for name in ("pipes", "ranks", "allocated", "total", "seconds"):
            assert getattr(found, name).tolist() == getattr(alone, name).tolist(), name


def test_a_search_finds_what_its_structures_have_in_their_order() -> None:
    """Those of the same sizes are evaluated together, and reported where they were."""
    several = list(structures(question("gpt2", 4, 8, "deepspeed", 512)))
    done: list[int] = []
    found = search(several, 8, done.append)
    alone = [search([one], 8) for one in several]
    assert done == list(range(1, len(several) + 1))
    assert found.set_ups == sum(one.set_ups for one in alone)
    assert found.feasible == sum(one.feasible for one in alone)
    assert found.kept == [set_up for one in alone for set_up in one.kept]
    least = [one.smallest for one in alone if one.smallest is not None]
    assert found.smallest == min(least, key=lambda set_up: set_up.total_bytes)
