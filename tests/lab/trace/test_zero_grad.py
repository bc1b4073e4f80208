"""When gradients are freed: the estimate of each order against a trace of the loop that does it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.corpus import sampled

from .conftest import TINY

pytest.importorskip("torch")

CONFIG = {**TINY, "num_hidden_layers": 3, "hidden_size": 512, "intermediate_size": 1408}
FORWARDS = ("s0.a0.fwd", "s2.a0.fwd")
ENGINES = {
    "one GPU": ({"type": "pytorch_ddp"}, 1),
    "ddp": ({"type": "pytorch_ddp"}, 2),
    "fsdp2": ({"type": "fsdp"}, 2),
    "fsdp1": ({"type": "fsdp", "fsdp_version": 1}, 2),
    "fsdp1, own parameters": ({"type": "fsdp", "fsdp_version": 1, "use_orig_params": True}, 2),
}


def run_file(order: str, engine: str, **training: Any) -> dict[str, Any]:
    """A tiny run under one of ENGINES that frees its gradients in this order."""
    options, gpus = ENGINES[engine]
    usual = {"seq_len": 64, "batch_size": 1, "gradient_clipping": 0, "zero_grad": order}
    return {
        "model": {"name": "tiny", "config": CONFIG},
        "training": {**usual, "optimizer": "sgd", **training},
        "engine": options,
        "hardware": {"gpu": "h200", "num_gpus": gpus},
    }


@pytest.mark.parametrize("engine", sampled(ENGINES.keys(), keep=1))
def test_gradients_live_through_the_first_forward(engine: str) -> None:
    """What a later step's first forward has beyond the first step's is traced to the byte: the old
    gradients, and backward's workspace.
    """
    from gpu_mem_calculator.lab.trace.run import trace

    run = run_file("before_backward", engine, gradient_accumulation_steps=2)
    traced = trace(run, steps=3).phases
    first, later = (traced[name].peak_bytes for name in FORWARDS)
    assert beyond_first_step(run) == later - first
    usual = run_file("after_step", engine, gradient_accumulation_steps=2)
    assert beyond_first_step(usual) < later - first


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_between_steps_do_not_change_the_peak(engine: str) -> None:
    """Freed before the next forward, they are alive only where nothing else is."""
    before, after = (run_file(order, engine) for order in ("before_forward", "after_step"))
    assert estimate(before).allocated_bytes == estimate(after).allocated_bytes


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ({"type": "deepspeed"}, "training.zero_grad='before_backward' is for a PyTorch loop"),
        ({"gradient_as_bucket_view": True}, "is not modelled with training.zero_grad="),
    ],
)
def test_other_orders_are_refused(engine: dict[str, Any], problem: str) -> None:
    """Engines with their own loop, and views of buckets, each with a sentence."""
    run = {**run_file("before_backward", "ddp"), "engine": engine}
    with pytest.raises(InputError, match=problem):
        estimate(run)


def beyond_first_step(run: dict[str, Any]) -> int:
    """Bytes by which the third step's first forward is estimated to be higher than the first's."""
    replayed = full_estimate(run).replayed
    assert replayed is not None
    first, later = (replayed.phases[name].peak_bytes for name in FORWARDS)
    return later - first
