"""PyTorch FSDP with its CPU offload: what leaves the GPU, and what the host holds instead."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from gpu_mem_calculator.ledger.ledger import CPU, GPU, GRAD, OPTIM, PARAM, TEMP, Ledger
from gpu_mem_calculator.models.arch.adapters import Adapter
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.training.engines.fsdp.engine import ENGINE, problems
from tests.training.engines.test_fsdp import LLAMA2_7B, LLAMA32_1B, STEP, make, strategy

SHARE = 6_738_415_616 // 8  # elements of one of eight shards


def offloaded(config: dict[str, Any] = LLAMA2_7B, name: str = "full_shard", **changes: Any) -> Run:
    """The same run with its shards on the host."""
    options = strategy(name, cpu_offload=True, **changes.pop("options", {}))
    return make(config, options=options, **changes)


def kinds(ledger: Ledger, instant: str, place: str) -> dict[str, int]:
    """Bytes by kind at an instant in one place."""
    found = next(i for i in ledger.instants if i.name == instant)
    return {kind: int(size) for kind, size in ledger.parts(found, place).items()}


def entry_bytes(ledger: Ledger, word: str, place: str = CPU) -> int:
    """Bytes of all entries whose name has a word."""
    return sum(int(e.bytes) for e in ledger.entries if word in e.name and e.place == place)


@pytest.mark.parametrize("name", ["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"])
def test_the_gpu_keeps_no_state_between_steps(name: str) -> None:
    """At the optimizer step buffers are all the model has on the GPU."""
    found = kinds(ENGINE.ledger(offloaded(name=name, dp=16)), "optimizer", GPU)
    assert (found[GRAD], found[OPTIM], found[TEMP]) == (0, 0, 0)
    assert 0 < found[PARAM] < 4096


def test_the_gpu_is_empty_at_start_up() -> None:
    """Shards are made on the host."""
    assert ENGINE.ledger(offloaded()).peak(phases=("startup",)) < 4096


def test_nothing_is_on_the_host_without_offload() -> None:
    """Only cpu_offload puts entries on the host."""
    assert not [e for e in ENGINE.ledger(make()).entries if e.place == CPU]


def test_the_peak_falls_by_what_was_resident() -> None:
    """At the loss the shards and the optimizer's states are what is missing."""
    on, off = (ENGINE.ledger(run) for run in (make(), offloaded()))
    resident, rest = (kinds(one, "loss.backward", GPU) for one in (on, off))
    assert resident[OPTIM] - rest[OPTIM] == 2 * 4 * SHARE
    assert resident[PARAM] - rest[PARAM] == 4 * SHARE
    assert off.peak(phases=STEP) < on.peak(phases=STEP)


def test_states_on_the_host_are_pageable_and_exact() -> None:
    """Two fp32 states an element, with no rounding."""
    assert kinds(ENGINE.ledger(offloaded()), "optimizer", CPU)[OPTIM] == 2 * 4 * SHARE


def test_pinned_blocks_are_powers_of_two() -> None:
    """A q projection of 8 MiB fits its block; an MLP matrix of 21.5 MiB takes one of 32 MiB."""
    mib = 2**20
    ledger = ENGINE.ledger(offloaded())
    layer = 4 * 8 * mib + 3 * 32 * mib + 2 * 2048  # two norms of 512 elements
    assert entry_bytes(ledger, "dense layers: sharded parameters, pinned") == 32 * layer
    assert entry_bytes(ledger, "dense layers: sharded gradients, pinned") == 32 * layer


def test_the_host_steps_in_a_loop_by_default() -> None:
    """A loop takes two copies of the largest shard, foreach one of all of them, fused none."""
    largest = 32000 * 4096 // 8 * 4
    sizes = {
        name: entry_bytes(ENGINE.ledger(offloaded(implementation=name)), "temporaries")
        for name in ("", "forloop", "foreach", "fused")
    }
    assert sizes == {"": 2 * largest, "forloop": 2 * largest, "foreach": 4 * SHARE, "fused": 0}


def test_only_one_rank_alone_copies_beyond_what_it_gathers() -> None:
    """One rank casts the fp32 head beside a gathered root; two have a larger buffer for it."""
    alone, two = (ENGINE.ledger(offloaded(dp=dp)) for dp in (1, 2))
    name = "embedding and head: copies of the shards"
    # at the head: the norm's cast before it, and the head as it is stored; its cast takes the
    # place of the gathered one that is still to come
    assert entry_bytes(alone, name, GPU) == 32000 * 4096 * 4 + 4096 * 2
    assert entry_bytes(two, name, GPU) == 0


def test_replicas_hold_reduced_gradients_until_backward_ends() -> None:
    """The all-reduce's tensor is kept for every layer above, in any dtype."""
    ledger = ENGINE.ledger(offloaded(name="hybrid_shard", dp=16, precision="bf16_pure"))
    output = next(e for e in ledger.entries if e.name == "dense layers: reduce-scatter output")
    assert output.at("embedding.backward") == 32 * 202_383_360 * 2 // 8
    assert output.at("optimizer") == 0


def test_accumulating_copies_one_gradient_at_a_time() -> None:
    """A later micro-batch brings each gradient to the host before it is added."""
    ledger = ENGINE.ledger(offloaded(micro_batches=2))
    added = next(e for e in ledger.entries if e.name.startswith("a gradient that is added"))
    assert added.bytes == 32000 * 4096 // 8 * 4
    assert "later.scatter.root" in added.live
    assert not [name for name in added.live if not name.startswith("later.")]


def test_a_tied_head_starts_on_the_host() -> None:
    """Until it is tied again it has its own tensor there, beside the unit being pinned."""
    ledger = ENGINE.ledger(offloaded(LLAMA32_1B, dp=2))
    table = 128256 * 2048 * 4 // 2
    assert entry_bytes(ledger, "a tied head") == 2 * table + 2048 * 4 // 2


def test_adapters_alone_have_gradients_on_the_host() -> None:
    """A frozen base is pinned too, but takes no gradient and no state."""
    adapter = Adapter(16, frozenset({"q_proj", "v_proj"}), 32, 0.0, False)
    ledger = ENGINE.ledger(offloaded(adapter=adapter))
    trained = 32 * 2 * 16 * (4096 + 4096)
    assert kinds(ledger, "optimizer", CPU)[GRAD] == trained * 4 // 8
    assert kinds(ledger, "optimizer", CPU)[OPTIM] == 2 * trained * 4 // 8
    assert kinds(ledger, "optimizer", CPU)[PARAM] > 4 * SHARE


@pytest.mark.parametrize("place", [GPU, CPU])
def test_arrays_give_what_scalars_give(place: str) -> None:
    """One ledger over arrays is the ledgers of its elements."""
    dp, seq, micro = [1, 2, 8, 64], [512, 2048, 4096, 64], [1, 2, 1, 3]
    together = ENGINE.ledger(
        offloaded(dp=numpy.array(dp), seq=numpy.array(seq), micro_batches=numpy.array(micro))
    ).peak(place)
    alone = [
        ENGINE.ledger(offloaded(dp=d, seq=s, micro_batches=m)).peak(place)
        for d, s, m in zip(dp, seq, micro, strict=True)
    ]
    assert together.tolist() == alone


def test_a_replicated_root_is_never_resharded() -> None:
    """`replicate` takes no reshard_after_forward."""
    run = make(options=strategy("no_shard", reshard_root_after_forward=True))
    (problem,) = problems(run)
    assert "reshard_root_after_forward=true" in problem
