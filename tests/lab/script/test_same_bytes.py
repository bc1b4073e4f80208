"""A script and the run file that describes the same program allocate the same bytes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from gpu_mem_calculator.lab.trace.run import RunTrace, run_trace, trace
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled

from ..trace.conftest import tiny_run
from .conftest import recorded

BLOCK = 512
BATCH = 2 * 128 * 8  # token ids, which a script makes before it calls its model
COUNTERS = 21 * BLOCK  # Adam's step of each parameter: on the host, and in a job's trace on the GPU
SCALER = 2 * BLOCK  # the scale, and the steps since it grew
CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "python {}/plain.py": ({"precision": "fp32"}, {}),
    "python {}/amp.py": (
        {"precision": "fp16_mixed"},
        {
            **dict.fromkeys(("s0.a0.bwd", "s1.a0.fwd", "s1.a0.bwd"), SCALER),
            **dict.fromkeys(("s0.opt", "s1.opt"), SCALER + BLOCK),  # found_inf
        },
    ),
    "torchrun --nproc-per-node=4 {}/ddp.py": ({"precision": "fp32"}, {}),
}


def _traced(words: str) -> RunTrace:
    made = recorded(words)
    resolved = resolve(read({**tiny_run(), "hardware": {"gpu": "h200"}}).file)
    return run_trace(resolved, made.stream, made.makers, made.kinds)


@pytest.mark.parametrize("words", sampled(CASES.keys(), keep=2))
def test_every_phase_has_the_same_peak(words: str) -> None:
    """Each phase differs by known tensors alone."""
    training, extra = CASES[words]
    ranks = 4 if "torchrun" in words else 1
    run = tiny_run(gradient_clipping=1.0, **training)
    job = trace({**run, "hardware": {"gpu": "h200", "num_gpus": ranks}}, steps=2)
    script = _traced(words)
    assert list(script.phases) == list(job.phases)
    for name, phase in script.phases.items():
        counters = COUNTERS if name not in ("model", "s0.a0.fwd", "s0.a0.bwd") else 0
        known = extra.get(name, 0) + (BATCH if name == "model" else 0) - counters
        assert phase.peak_bytes - job.phases[name].peak_bytes == known, name
    assert script.reserved_bytes == job.reserved_bytes


def test_states_are_told_apart() -> None:
    """Parameters, gradients and two states of Adam, found without knowing the model."""
    traced = _traced("python {}/plain.py")
    parts = traced.ledger.parts(next(i for i in traced.ledger.instants if i.name == "s1.opt"))
    assert parts["grad"] == pytest.approx(parts["param"], rel=0.01)
    assert parts["optim"] == 2 * parts["grad"]


def test_a_tensor_is_named_by_the_scripts_own_line() -> None:
    """The line of a tensor is the script's or a library's, never this package's."""
    made = recorded("python {}/plain.py")
    assert not [maker.line for maker in made.makers if "gpu_mem_calculator" in maker.line]
    assert any(maker.line.endswith("tiny.py:30") for maker in made.makers)
    assert (made.num_parameters, made.words) == (106_816, ["fp32 weights", "AdamW"])
