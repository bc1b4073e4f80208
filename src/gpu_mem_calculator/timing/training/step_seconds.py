"""The seconds of a training step, by what they are spent on."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

Seconds: TypeAlias = Any  # a float for one run, an array of floats for several at once

PARTS = ("compute", "host", "exposed_communication", "bubble", "optimizer", "offload")


class StepSeconds(Struct, frozen=True, kw_only=True):
    """The expected seconds of a step, an interval, and parts that add up to the expected value.

    Floats for one run, arrays for several at once.

    - `low`, `high`: 80 % of measured steps lie between them
    - `compute`: kernels of forward, backward and recompute
    - `host`: time in which the GPU waits for the host to launch kernels
    - `exposed_communication`: collectives that no kernel overlaps
    - `bubble`: time in which a pipeline stage waits for others
    - `optimizer`: the optimizer step; `offload`: transfers and the optimizer on the host
    """

    estimate: Seconds
    low: Seconds
    high: Seconds
    compute: Seconds = 0
    host: Seconds = 0
    exposed_communication: Seconds = 0
    bubble: Seconds = 0
    optimizer: Seconds = 0
    offload: Seconds = 0
