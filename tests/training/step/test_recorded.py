"""A recorded part walks like the tape that its events come from."""

from __future__ import annotations

from gpu_mem_calculator.pytorch.autograd.tape import Tape
from gpu_mem_calculator.pytorch.autograd.walk import walk
from gpu_mem_calculator.run.record import RecordedPart
from gpu_mem_calculator.training.step.recorded import part_walk


def test_a_recorded_part_has_the_peaks_and_hooks_of_its_tape() -> None:
    """An activation before a linear layer: a hook runs before the event that comes next."""
    tape = Tape()
    x, weight = tape.value("x", 10, 8), tape.param("w", 5, 8)
    active = tape.op("active", x, saves=(x,))
    y = tape.op("y", active, weight, elements=20, saves=(active, weight))
    own = walk(tape, x, y)
    assert own.script is not None
    part = RecordedPart(
        kind="layer",
        weights=(("w", (5,)),),
        modules=(),
        script=own.script,
        once=own.once,
        kept=own.saved,
    )
    found = part_walk(part, checkpoint=False)
    assert found.hooks == own.hooks == ((5, 20),)
    assert found.after_first == own.after_first
    assert (found.backward, found.later) == (own.backward, own.later)
