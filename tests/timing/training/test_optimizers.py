"""The step of every optimizer has a time of its own, or that of another, which is named."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.curves.optimizers import CURVES, step_curve, timed_step
from gpu_mem_calculator.timing.training.optimizer import optimizer_seconds, own_step, timed_as
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engines
from gpu_mem_calculator.training.optimizers import OPTIMIZERS

from .test_step import file

ROWS = [
    (engine, optimizer, kind)
    for engine, one in engines().items()
    for optimizer in sorted(one.optimizers)
    for kind in ("", *OPTIMIZERS[optimizer].implementations)
]


def test_every_curve_is_of_an_optimizer_and_whole() -> None:
    """None is of an implementation that its optimizer lacks; DeepSpeed has a kernel of its own."""
    for (name, kind), curve in CURVES.items():
        assert kind in (*OPTIMIZERS[name].implementations, "deepspeed"), (name, kind)
        assert min(curve.wide, curve.half, curve.tensor) > 0, (name, kind)


def test_what_was_measured_of_bitsandbytes() -> None:
    """Bytes of a parameter; the others follow from their states."""
    measured = {"adamw_8bit": 134.0, "paged_adamw_8bit": 165.0, "lion_8bit": 86.0}
    assert {name: step_curve((name, "")).wide for name in measured} == measured


@pytest.mark.parametrize(("engine", "optimizer", "kind"), ROWS)
def test_every_optimizer_of_every_engine_is_timed(engine: str, optimizer: str, kind: str) -> None:
    """With each of its implementations; one that is timed as another says so."""
    found = resolve(read(file(engine)).file)
    run = replace(found.run, optimizer=optimizer, implementation=kind)
    assert optimizer_seconds(run, engine, machine_of(found.hardware), 10**9) > 0
    own = own_step(run, engine)
    measured = OPTIMIZERS[optimizer].of_bitsandbytes or own in CURVES
    apex = "megatron" in engine and kind != "foreach"
    assert timed_as(run, engine) == ("" if apex or measured else " ".join(timed_step(own)))


def test_more_states_take_longer() -> None:
    """Of kernels with the same width; 32-bit ones of bitsandbytes move what they must."""
    for width in ("", "_8bit"):
        one, three = step_curve((f"lion{width}", "")), step_curve((f"ademamix{width}", ""))
        assert one.wide < three.wide
        assert step_curve((f"paged_lion{width}", "")).wide > one.wide
    assert step_curve(("ademamix", "")).wide >= 12 + 8 * 3
    assert step_curve(("lion", "")).half >= 6 + 8


def test_muon_multiplies_matrices() -> None:
    """Its iterations take longer than momentum moves bytes."""
    found = resolve(read(file("pytorch_ddp")).file)
    machine, elements = machine_of(found.hardware), 8 * 10**9
    muon, momentum = (
        optimizer_seconds(replace(found.run, optimizer=name), "pytorch_ddp", machine, elements)
        for name in ("muon", "sgd_momentum")
    )
    assert muon > 1.5 * momentum
