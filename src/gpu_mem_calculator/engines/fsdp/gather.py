"""Parameters that come and go: gathered flat, copied out, let go.

Line numbers: torch 2.13 distributed/fsdp/_fully_shard, `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter

from ...ledger.ledger import ACT, COMM, PARAM, Entry
from ...ledger.num import Num, nothing
from ...ledger.source import code
from ...step.activations import StageWalks
from .instants import FsdpInstant
from .layout import COPY_IN, NONE, FsdpLayout, layer_entries, one, only, root_entry
from .units import FsdpUnit, alone_script, copies_script

LOSS_BYTES = 4
HERE = ("gather", "forward", "regather", "prefetch", "layer")  # a layer is gathered


def gathered_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Whole parameters, one tensor each."""
    copied = code("torch 2.13 F/_fsdp_collectives.py:457: copied out of the gathered buffer")

    def whole(spot: FsdpInstant) -> range:
        if plan.keeps:
            return range(spot.layer + (spot.at not in ("flat", "reduce", "scatter")))
        return one(spot.layer) if spot.at in HERE else NONE

    def tensors(unit: FsdpUnit) -> Iterable[Num]:
        return (part.whole for part in unit.parts)

    alone = plan.run.unrolled and nothing(plan.several)
    script = partial(alone_script, offload=plan.offload) if alone else None
    yield root_entry(
        plan, "gathered parameters", PARAM, plan.root.gathered,
        only("root", "flat", *HERE, "loss", "loss.backward", "reduce", "scatter", "embedding"),
        copied, tensors=tensors, script=script,
    )  # fmt: skip
    yield from layer_entries(plan, "gathered parameters", PARAM, attrgetter("gathered"), whole,
                             copied, tensors=tensors, script=script)  # fmt: skip


def buffer_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """The flat buffers that units are gathered into, and the cast shards that go into them."""
    source = code("torch 2.13 F/_fsdp_collectives.py:351; kept and freed as in "
                  "F/_fsdp_param_group.py:429-489, 584")  # fmt: skip
    cast = code("torch 2.13 F/_fsdp_collectives.py:384-427: gone once they are copied in")
    top, several = len(plan.layers), plan.several
    below = {} if plan.keeps else dict.fromkeys(("prefetch", "layer", "reduce", "scatter"), 1)
    own = {"forward", *(() if plan.keeps else ("regather",))}
    last = {"loss", *(() if plan.keeps else ("loss.backward",))}

    def flat(spot: FsdpInstant) -> range:
        if spot.at in ("flat", "gather"):
            return range(spot.layer - 1, spot.layer + 1)
        if spot.at in last:
            return one(top - 1)
        if spot.at in own or spot.at in below:
            return one(spot.layer - below.get(spot.at, 0))
        return NONE

    def fresh(spot: FsdpInstant) -> range:
        gathers = {"flat": spot.layer, "prefetch": spot.layer - 1}.get(spot.at)
        return NONE if gathers is None else one(gathers)

    def root(spot: FsdpInstant) -> Num:
        first = spot.at in ("flat", "gather") and spot.layer == 0
        return int(first or spot.at in ("root.flat", "root"))

    script = copies_script if plan.offload and plan.run.unrolled else None
    yield root_entry(plan, "shards, cast", COMM, plan.root.cast * several, only("root.flat"), cast,
                     stream=COPY_IN, script=script)  # fmt: skip
    yield from layer_entries(plan, "shards, cast", COMM, lambda u: u.cast * several, fresh, cast,
                             stream=COPY_IN, script=script)  # fmt: skip
    yield root_entry(plan, "all-gather buffer", COMM, plan.root.gathered * several, root, source,
                     stream=COPY_IN)  # fmt: skip
    yield from layer_entries(plan, "all-gather buffer", COMM, lambda u: u.gathered * several, flat,
                             source, stream=COPY_IN)  # fmt: skip


def between_entries(plan: FsdpLayout, done: StageWalks) -> Iterator[Entry]:
    """Activations while no block computes: what the loss keeps, a gradient on its way down.

    In an unrolled run scripts have them, but for the first layer's input before it runs.
    """
    size, top = done.layers[0].input_bytes, len(plan.layers)
    source = code("torch 2.13 F/_fsdp_state.py: hooks before and after each unit")

    def entry(name: str, size: Num, holds: Callable[[FsdpInstant], bool]) -> Entry:
        live = {spot.beat.name: 1 for spot in plan.spots if holds(spot)}
        return Entry(name=name, kind=ACT, bytes=size, live=live, source=source)

    yield entry("output of the embedding", size,
                lambda s: s.at in ("flat", "gather") and s.layer == 0)  # fmt: skip
    if plan.run.unrolled:
        return
    low = 0 if done.first is None else 1  # or the first layer's input takes no gradient
    yield entry("input of the layer", size, lambda s: s.at in ("flat", "gather") and s.layer > 0)
    yield entry("gradient of the layer's input", size,
                lambda s: s.at in ("reduce", "scatter") and s.layer >= low)  # fmt: skip
    yield entry("gradient of the layer's output", size,
                lambda s: s.at in ("regather", "prefetch") and s.layer < top)  # fmt: skip
    yield entry("loss: kept for backward, and itself", done.head.saved_bytes + LOSS_BYTES,
                lambda s: s.at in ("root.flat", "root", "prefetch") and s.layer == top)  # fmt: skip
