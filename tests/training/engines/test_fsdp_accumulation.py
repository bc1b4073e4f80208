"""Gradients that only the last micro-batch of a step reduces: `sync_each_batch=false`."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import GRAD
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.fsdp.checks import problems
from tests.training.engines import test_fsdp1_stream, test_fsdp_stream
from tests.training.engines.test_fsdp_stream import STEP, live_peak, small, written


def runs(number: int) -> list[dict[str, Any]]:
    """Random runs of both versions that accumulate over two to five micro-batches."""
    rng = Random(7)
    found = []
    for run in (*test_fsdp_stream.runs(2 * number), *test_fsdp1_stream.runs(2 * number)):
        run["engine"] |= {"sync_each_batch": False}
        run["engine"].pop("reduce_dtype", None)
        run["training"]["gradient_accumulation_steps"] = rng.choice((2, 3, 5))
        alone = run["hardware"]["num_gpus"] == 1
        alone = alone or run["engine"].get("sharding_strategy") == "no_shard"
        if run["engine"].get("fsdp_version") != 1 or not alone:
            found.append(run)
    return found[::2]


@pytest.mark.parametrize("run", runs(24), ids=lambda run: run["model"]["config"]["model_type"])
def test_a_stream_is_as_high_as_its_ledger(run: dict[str, Any]) -> None:
    """The few instants of a ledger have the same peak as all layers and micro-batches in turn."""
    resolved = resolve(read(run).file)
    highest = resolved.engine.ledger(resolved.run).peak(phases=STEP)
    assert live_peak(written(resolved)) == highest


@pytest.mark.parametrize("version", [1, 2])
def test_whole_gradients_wait_for_the_last_micro_batch(version: int) -> None:
    """When a second micro-batch begins, its gradients are the whole model's, in 16 bits."""
    run = small(fsdp_version=version, sync_each_batch=False).run
    ledger = small().engine.ledger(replace(run, micro_batches=2))
    (begins,) = [i for i in ledger.instants if i.name == "later.forward"]
    whole = 2 * run.arch.num_parameters
    assert whole <= ledger.parts(begins)[GRAD] < 1.001 * whole
    reduced = small(fsdp_version=version).engine.ledger(
        replace(run, micro_batches=2, options={**run.options, "sync_each_batch": True})
    )
    assert reduced.parts(begins)[GRAD] < whole


def test_weights_are_wrapped_in_16_bits_and_upcast_last() -> None:
    """A unit is moved and flattened in half the bytes; both kinds of shards remain."""
    startup = {}
    for dtype in (None, "bf16"):
        resolved = small(fsdp_version=1, **({"init_dtype": dtype} if dtype else {}))
        ledger = resolved.engine.ledger(resolved.run)
        startup[dtype] = ledger.heights()
    wrapped = startup["bf16"]["startup.root"] / startup[None]["startup.root"]
    assert wrapped == pytest.approx(0.5, abs=0.01)
    ended = startup["bf16"]["startup"] / startup[None]["startup"]
    assert ended == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"fsdp_version": 1, "sharding_strategy": "no_shard"}, "one rank"),
        ({"reduce_dtype": "fp32"}, "reduce_dtype"),
    ],
)
def test_what_is_not_modelled_is_refused(engine: dict[str, Any], words: str) -> None:
    """Only where micro-batches accumulate."""
    run = small().run
    run = replace(run, options={**run.options, **engine, "sync_each_batch": False})
    assert not list(problems(run))
    (problem,) = problems(replace(run, micro_batches=2))
    assert words in problem
    assert "engine.sync_each_batch" in problem
