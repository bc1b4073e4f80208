"""Runs the program of a run file by its own tool, in the process of a traced script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...runfile.resolve.resolve import resolve
from ...tools.read import read
from ..jobs.job import FAKE, NONE, Job, World, run

if TYPE_CHECKING:
    from .simulation import Simulation

STARTED = "model"  # the phase that ends where training begins


def run_program(text: str, simulation: Simulation) -> None:
    """Run the program of a run file, given with the number of its steps as JSON."""
    data, steps = msgspec.json.decode(text)
    file = read(data)
    resolved = resolve(file)
    simulation.watch.on_first_module = lambda: None  # the program says where training begins

    def mark(name: str) -> None:
        if name == STARTED:
            simulation.steps.begin()

    world = World(
        device="cuda",
        mark=mark,
        process_group=NONE if resolved.hardware.num_gpus == 1 else FAKE,
        steps=steps,
        has_weights=False,
    )
    run(Job(file=file, resolved=resolved, world=world))
