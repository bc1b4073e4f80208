"""Seconds of a rank's layers depend on nothing that is left out of what they are remembered by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.run.recompute import RecomputeRule
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.communication import end_collectives, layer_collectives
from gpu_mem_calculator.timing.training.compute import (
    embedding_seconds,
    head_seconds,
    layer_seconds,
)
from gpu_mem_calculator.timing.training.operators import layer_kinds
from gpu_mem_calculator.timing.training.parameters import rank_parameters
from gpu_mem_calculator.timing.training.step import (
    OF_TOKENS,
    UNREAD,
    UNREAD_OPTIONS,
    rank_seconds,
    step_seconds,
)
from gpu_mem_calculator.timing.training.synchronization import synchronization
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run
from tests.timing.training.test_arrays import MEGATRON, OTHERS, resolved

RUNS = {**MEGATRON, **OTHERS}
# Another value of each field that is left out.
OTHERWISE: dict[str, Any] = {
    "micro_batches": 5,
    "optimizer": "sgd",
    "implementation": "foreach",
    "embedding_states_32bit": True,
    "clipping": False,
    "evaluation": "another",
    "saving": True,
    "zero_grad": "before_backward",
    "recompute_quarters": 2,
    "stage": 1,
    "virtual_stages": 2,
    "stage_counts": ((1, 1),),
    "ends_counted": (1, 1),
    "micro_batch_group": 8,
    "unrolled": True,
    "num_nodes": 9,
    "stored": (("one", 2, 3),),
    "stored_form": "gguf",
    "rollout": "another",
    "generates": "another",
    "draft": "another",
}
OPTIONS: dict[str, Any] = {
    "account_for_embedding_in_pipeline_split": True,
    "account_for_loss_in_pipeline_split": True,
    "cpu_offload": True,
    "distributed_optimizer": True,
    "offload_optimizer": "cpu",
    "offload_param": "cpu",
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "sharding_strategy": "hybrid_shard",
}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_what_is_left_out_changes_nothing(name: str) -> None:
    """Neither a field or option, nor dp and pp, nor layers that recompute."""
    assert OTHERWISE.keys() == UNREAD.keys()
    assert OPTIONS.keys() == UNREAD_OPTIONS
    found = resolved(RUNS, name)
    run, engine, machine = found.run, found.engine.name, machine_of(found.hardware)
    mesh = replace(run.mesh, dp=3, pp=7)
    other = replace(run, mesh=mesh, rule=replace(run.rule, first_layers=1), **OTHERWISE)
    other = replace(other, options={**run.options, **OPTIONS})
    for kind in layer_kinds(run.arch):
        block = layer_seconds(run, engine, machine, kind)
        assert layer_seconds(other, engine, machine, kind) == block
        moves = layer_collectives(run, engine, machine, kind, block)
        assert layer_collectives(other, engine, machine, kind, block) == moves
    for part in (embedding_seconds, head_seconds, end_collectives):
        assert part(other, engine, machine) == part(run, engine, machine)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_collectives_of_data_parallel_ranks_depend_on_no_token(name: str) -> None:
    """Neither on batch, sequence, loss and recompute, nor on what a rank's layers do not read."""
    found = resolved(RUNS, name)
    run, engine, machine = found.run, found.engine.name, machine_of(found.hardware)
    first = tuple(kind.count for kind in layer_kinds(run.arch))
    others = {"batch": 7, "seq": 96, "loss": "cut", "recompute": "full", "reentrant": True}
    others |= {"rule": RecomputeRule(every=2), "sequence_parallel": not run.sequence_parallel}
    assert others.keys() == OF_TOKENS.keys()
    other = replace(run, **OTHERWISE, **others)
    owned = rank_parameters(run, engine, layer_kinds(run.arch), first)
    assert rank_parameters(other, engine, layer_kinds(run.arch), first) == owned
    sync = synchronization(run, engine, machine, owned)
    assert synchronization(other, engine, machine, owned) == sync


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_rank_is_the_same_whatever_was_asked_before(name: str) -> None:
    """Losses, policies and ZeRO's linear layers are told apart."""
    found = resolved(RUNS, name)
    run, engine, machine = found.run, found.engine.name, machine_of(found.hardware)
    every = [
        run,
        replace(run, batch=run.batch * 3),
        replace(run, recompute="none" if run.recompute == "full" else "full"),
        replace(run, options={**run.options, "zero_stage": 3}),
        replace(run, sequence_parallel=not run.sequence_parallel),
    ]
    forget()
    together = [rank_seconds(one, engine, machine) for one in every]
    for one, seconds in zip(every, together, strict=True):
        forget()
        assert rank_seconds(one, engine, machine) == seconds


def test_equal_ranks_of_an_array_are_computed_once() -> None:
    """What each kernel takes is looked up for two micro-batches, and spread over all set-ups."""
    found = resolved(OTHERS, "fsdp")
    run, machine = found.run, machine_of(found.hardware)
    batch = np.array([4, 1, 4, 4, 1])
    many = rank_seconds(replace(run, batch=batch), "fsdp", machine)
    for place, size in enumerate(batch.tolist()):
        one = rank_seconds(replace(run, batch=size), "fsdp", machine)
        assert many.blocks[0].forward[place] == one.blocks[0].forward
        assert many.head.backward[place] == one.head.backward


def test_a_rank_that_stores_scores_is_timed_alone() -> None:
    """One sequence is read where it lies, several are copied: Bloom's eager attention."""
    config = {"model_type": "bloom", "hidden_size": 256, "n_head": 4, "n_layer": 2}
    file = small_run("fsdp", model={"config": {**config, "vocab_size": 1000}})
    found = resolve(read(file).file)
    run, machine = found.run, machine_of(found.hardware)
    many = step_seconds(replace(run, batch=np.array([1, 2, 3])), "fsdp", machine)
    for place, size in enumerate((1, 2, 3)):
        one = step_seconds(replace(run, batch=size), "fsdp", machine)
        assert float(many.estimate[place]) == float(one.estimate)
