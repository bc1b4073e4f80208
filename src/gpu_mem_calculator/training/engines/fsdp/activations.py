"""Activations that are alive while FSDP gathers or reduces, and no block computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from ....ledger.ledger import ACT, FIRST_INPUT, Entry
from ....ledger.num import Bytes, sized
from ....ledger.source import code
from ...step.activations import StageWalks
from .instants import FsdpInstant
from .layout import UnitLayout

LOSS_BYTES = sized(1, 32)
# Actions of either version: a layer's input exists, the gradient of its output, of its input does.
BEFORE_FORWARD = ("flat", "gather", "ahead")
BEFORE_BACKWARD = ("regather", "prefetch")
AFTER_BACKWARD = ("flatten", "after", "reduce", "scatter", "reduce.head", "scatter.head")


def between_entries(plan: UnitLayout, walks: StageWalks) -> Iterator[Entry]:
    """What the loss keeps, inputs of layers and gradients between two layers.

    In an unrolled run the blocks' events contain them, except for the first layer's input before
    that layer runs.
    """
    size, top = walks.layers[0].input_bytes, len(plan.layers)
    source = code("torch 2.13 F/_fsdp_state.py: hooks before and after each unit")

    def entry(name: str, size: Bytes, alive: Callable[[FsdpInstant], bool]) -> Entry:
        live = {i.step.name: 1 for i in plan.instants if alive(i)}
        return Entry(name, ACT, size, live, source)

    def embedded(instant: FsdpInstant) -> bool:
        first = instant.action in BEFORE_FORWARD and instant.layer == 0
        return first or instant.action == "root.out"

    yield replace(entry("output of the embedding", size, embedded), role=FIRST_INPUT)
    if plan.run.unrolled:
        return
    low = 0 if walks.first is None else 1  # or the first layer's input takes no gradient
    waiting = (*BEFORE_FORWARD, "head.flat", "head")
    yield entry("input of the layer", size, lambda i: i.action in waiting and i.layer > 0)
    name = "gradient of the layer's input"
    yield entry(name, size, lambda i: i.action in AFTER_BACKWARD and i.layer >= low)
    name = "gradient of the layer's output"
    yield entry(name, size, lambda i: i.action in BEFORE_BACKWARD and i.layer < top)
    name, size = "loss: kept for backward, and itself", walks.head.saved_bytes + LOSS_BYTES
    again = ("root.flat", "root", "prefetch")
    yield entry(name, size, lambda i: i.action in again and i.layer == top)
