"""FSDP version 1's stream of allocations: as high as its ledger."""

from __future__ import annotations

from itertools import count, islice
from random import Random
from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.random_runs.runs import run_file
from tests.training.engines.test_fsdp_stream import STEP, live_peak, written

SEED = 11
CHOICES: dict[str, tuple[Any, ...]] = {
    "use_orig_params": (False, True),
    "backward_prefetch": ("backward_pre", "backward_post", "none"),
    "forward_prefetch": (False, True),
    "init_device": ("cpu", "cuda", "meta"),
    "cpu_offload": (False, False, True),
}


def runs(number: int) -> list[dict[str, Any]]:
    """Random runs of version 2 with random options of version 1."""
    rng = Random(SEED)
    drawn = (run_file(SEED, index) for index in count())
    found = []
    for run in islice((run for run in drawn if run["engine"]["type"] == "fsdp"), number):
        engine = {k: v for k, v in run["engine"].items() if k != "reshard_root_after_forward"}
        if engine.get("hybrid_shard_size") == 1:
            engine = {"type": "fsdp"}
        chosen = {name: rng.choice(values) for name, values in CHOICES.items()}
        if engine.get("sharding_strategy") == "no_shard" or run["hardware"]["num_gpus"] == 1:
            chosen["cpu_offload"] = False
        if "lora" in run["training"]:
            chosen["use_orig_params"] = True
            run["training"]["lora"]["dora"] = False
            stored = "fp32" if "pure" not in run["training"]["precision"] else "bf16"
            run["training"]["lora"]["adapter_dtype"] = stored
        found.append({**run, "engine": {**engine, **chosen, "fsdp_version": 1}})
    return found


@pytest.mark.parametrize("run", runs(60), ids=lambda run: run["model"]["config"]["model_type"])
def test_a_stream_is_as_high_as_its_ledger(run: dict[str, Any]) -> None:
    """The few instants of a ledger have the same peak as all layers in turn."""
    resolved = resolve(read(run).file)
    highest = resolved.engine.ledger(resolved.run).peak(phases=STEP)
    assert live_peak(written(resolved)) == highest
