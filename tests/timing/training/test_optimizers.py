"""The step of every optimizer has a time of its own, or that of another, which is named."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.curves.optimizers import BYTES, TENSOR, TIMED_AS
from gpu_mem_calculator.timing.training.optimizer import optimizer_seconds, own_row, timed_as
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engines
from gpu_mem_calculator.training.step.optimizers import OPTIMIZERS

from .test_step import file

ROWS = [
    (engine, optimizer, kind)
    for engine, one in engines().items()
    for optimizer in sorted(one.optimizers)
    for kind in ("", *OPTIMIZERS[optimizer].implementations)
]


def test_every_row_of_the_table_is_whole() -> None:
    """Bytes and seconds of the host for each, and none is timed as one that has no row."""
    assert BYTES.keys() == TENSOR.keys()
    assert not TIMED_AS.keys() & BYTES.keys()
    assert set(TIMED_AS.values()) <= BYTES.keys()
    assert {name for name, _ in (*BYTES, *TIMED_AS)} == OPTIMIZERS.keys()


@pytest.mark.parametrize(("engine", "optimizer", "kind"), ROWS)
def test_every_optimizer_of_every_engine_is_timed(engine: str, optimizer: str, kind: str) -> None:
    """With each of its implementations; one that is timed as another says so."""
    found = resolve(read(file(engine)))
    run = replace(found.run, optimizer=optimizer, implementation=kind)
    assert optimizer_seconds(run, engine, machine_of(found.hardware), 10**9) > 0
    assert (
        bool(timed_as(run, engine))
        == (own_row(run, engine) in TIMED_AS and "megatron" not in engine)
        or kind == "foreach"
    )


def test_more_states_take_longer() -> None:
    """Of kernels with the same width; 32-bit ones of bitsandbytes move what they must."""
    for width in ("", "_8bit"):
        one, three = BYTES[f"lion{width}", ""], BYTES[f"ademamix{width}", ""]
        assert one[0] < three[0]
        assert BYTES[f"paged_lion{width}", ""][0] > one[0]
    assert BYTES["ademamix", ""][0] >= 12 + 8 * 3
    assert BYTES["lion", ""][1] >= 6 + 8


def test_muon_multiplies_matrices() -> None:
    """Its iterations take longer than momentum moves bytes."""
    found = resolve(read(file("pytorch_ddp")))
    machine, elements = machine_of(found.hardware), 8 * 10**9
    muon, momentum = (
        optimizer_seconds(replace(found.run, optimizer=name), "pytorch_ddp", machine, elements)
        for name in ("muon", "sgd_momentum")
    )
    assert muon > 1.5 * momentum
