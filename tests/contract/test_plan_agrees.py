"""`plan` and `estimate` accept and refuse the same set-ups, for the same reasons."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gpu_mem_calculator.advice.planner.training.axes import NUMERIC, RECOMPUTED, axis_values
from gpu_mem_calculator.advice.planner.training.search import at_sizes
from gpu_mem_calculator.advice.planner.training.structures import (
    Sizes,
    choices,
    find_structure,
    makes_up,
    run_file,
)
from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.runfile.resolve.recompute_policies import NAMES as POLICIES
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import engine_names
from gpu_mem_calculator.training.losses import LOSSES
from gpu_mem_calculator.training.optimizers import OPTIMIZERS
from tests.conftest import SMALL_LLAMA

GPUS, BATCH, SEQ = 4, 8, 256
RECOMPUTE = ("training.activation_checkpointing", "training.recompute")
ROWS = [
    (engine, optimizer, loss)
    for number, engine in enumerate(engine_names())
    for place, optimizer in enumerate(OPTIMIZERS)
    for loss in [[*LOSSES][(number + place) % len(LOSSES)]]
]


def refusals(run: dict[str, Any]) -> list[str]:
    """What `estimate` says against a run; nothing where it answers."""
    try:
        estimate(run, replay=False)
    except InputError as error:
        return error.problems
    return []


@pytest.mark.parametrize("policy", POLICIES)
def test_plan_and_estimate_agree(policy: str) -> None:
    """Every engine with every optimizer, and losses in turn: the sizes that the planner takes are
    those that `estimate` accepts, and it drops a structure for a reason that `estimate` gives.
    """
    random = Random(policy)
    for engine, optimizer, loss in random.sample(ROWS, len(ROWS) // 3):
        training = {"optimizer": optimizer, "loss": loss, "recompute": policy, "seq_len": SEQ}
        hardware = {"gpu": "h100-80gb-sxm", "num_gpus": GPUS}
        base = {"model": {"config": SMALL_LLAMA}, "training": training, "hardware": hardware}
        tried = list(choices(engine, {}, experts=False, optimizer=optimizer))
        settings = {k: v for k, v in random.choice(tried).items() if k not in RECOMPUTE}
        _check_structure(base, engine, settings)


def _check_structure(base: dict[str, Any], engine: str, settings: dict[str, Any]) -> None:
    arch = find_model(ModelConfig(config=SMALL_LLAMA)).arch
    values = axis_values(arch, num_gpus=GPUS, gpus_per_node=GPUS, seq=SEQ, global_batch=BATCH)
    refused: list[str] = []
    found = find_structure(base, arch, engine, settings, values, BATCH, [], refused)
    chosen = {"engine.type": engine, **settings}
    if found is None:
        sizes = dict.fromkeys(NUMERIC, 1) | {RECOMPUTED: -1, "batch": 2}
        said = refusals(run_file(base, chosen, sizes, BATCH))
        assert said, f"{chosen}, {base['training']}: only the planner refuses it, {refused}"
        return
    places = [(p, r) for p in range(len(found.pipes)) for r in range(len(found.ranks))]
    for place in Random(0).sample(places, min(4, len(places))):
        sizes_there: Sizes = found.sizes(*place)
        if makes_up(sizes_there, GPUS, BATCH):
            said = refusals(run_file(base, chosen, sizes_there, BATCH))
            planned = at_sizes(found, sizes_there, BATCH) is not None
            assert planned == (not said), f"{chosen}, {sizes_there}, {base['training']}: {said}"


def test_a_size_other_than_the_first_may_be_accepted() -> None:
    """A reward model needs an even micro-batch, and the smallest that is tried is 1."""
    training = {"loss": "reward", "seq_len": SEQ}
    hardware = {"gpu": "h100-80gb-sxm", "num_gpus": 1}
    base = {"model": {"config": SMALL_LLAMA}, "training": training, "hardware": hardware}
    arch = find_model(ModelConfig(config=SMALL_LLAMA)).arch
    values = axis_values(arch, num_gpus=1, gpus_per_node=1, seq=SEQ, global_batch=BATCH)
    found = find_structure(base, arch, "pytorch_ddp", {}, values, BATCH, [], [])
    assert found is not None
    assert int(found.resolved.run.batch) == 2
