"""The named instants of a training step on one pipeline stage.

Activations of micro-batches in flight add up in forward; backward frees them layer by layer and
allocates gradients. Within a range of equal layers both change linearly, so the peak of a range is
at its first or its last layer: only these have an instant. In later micro-batches all gradients
exist already, so only the last layer of a range, the first to run backward, has one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import FIRST, LAST, LATER, Instant, instant
from ...ledger.num import Num, choose, holds, larger, nothing, smaller
from ...ledger.remember import remembered
from ...run.phases import BACKWARD, FORWARD, OPTIMIZER


class LayerRange(Struct, frozen=True):
    """Consecutive equal layers of one stage."""

    title: str
    count: Num


class StepInstant(Struct, frozen=True, kw_only=True, gc=False):
    """An instant, and what is alive then.

    - `saved[i]`, `grads[i]`: layers of range i whose activations, whose gradients are alive; the
      layer that runs is not counted.
    - `head_grads`, `embedding_grads`: 1 where the gradients of the head, of the embedding are.
    - `work`: what runs: "layer", "head", "loss", "embedding", "reference", or "" for nothing of
      these.
    - `stretch`: the index of the range whose layer runs.
    - `later`: an earlier micro-batch has allocated the gradients.
    - `inside_forward`: the model's forward has not returned.
    """

    instant: Instant
    saved: tuple[Num, ...]
    grads: tuple[Num, ...]
    head_grads: Num = 0
    embedding_grads: Num = 0
    work: str = ""
    stretch: int = 0
    later: bool = False
    inside_forward: bool = False

    @property
    def name(self) -> str:
        """The name of the instant, by which entries say when they are alive."""
        return self.instant.name


Instants = tuple[StepInstant, ...]


def in_flight(pp: Num, stage: Num, micro_batches: Num) -> Num:
    """Micro-batches whose activations a stage holds under 1F1B: min(pp - stage, m)."""
    return smaller(pp - stage, micro_batches)


def step(
    ranges: tuple[LayerRange, ...],
    *,
    flight: Num = 1,
    micro_batches: Num = 1,
    head: Num = 1,
    embedding: Num = 1,
    every: bool = False,
    both_ends: bool = False,
    reference: bool = False,
) -> Instants:
    """The instants of one step. `head` and `embedding` are 1 where the stage has them.

    `flight`: micro-batches whose activations are alive at once. `every`: forward has an instant for
    every range, not only for the last; without it, steps of plain numbers are cached. `both_ends`:
    later micro-batches, too, have an instant at the first layer of a range. `reference`: a
    reference model runs forward before backward begins.
    """
    build = _step if every else _rolled_step
    return build(ranges, flight, micro_batches, head, embedding, every, both_ends, reference)


def _step(
    ranges: tuple[LayerRange, ...],
    flight: Num,
    micro_batches: Num,
    head: Num,
    embedding: Num,
    every: bool,
    both_ends: bool,
    reference: bool,
) -> Instants:
    counts = tuple(r.count for r in ranges)
    none = tuple(0 for _ in ranges)
    full = tuple(flight * n for n in counts)
    build = partial(_micro_batch, ranges, counts, every=every, reference=reference)
    first = build(full, flight, head, embedding, none, later=False)
    again = holds(micro_batches > 1)
    more = choose(micro_batches > flight, flight, flight - 1)
    if isinstance(again, int) and not again:
        later: Instants = ()
    else:
        full = tuple(more * n for n in counts)
        forwards = holds(micro_batches > flight)
        ends: dict[str, Any] = {"present": again, "forwards": forwards, "both_ends": both_ends}
        sizes = (full, more, head * again, embedding * again, counts)
        later = build(*sizes, later=True, **ends)
    end = StepInstant(
        instant=instant("optimizer", OPTIMIZER, "optimizer step"),
        saved=none,
        grads=counts,
        head_grads=head,
        embedding_grads=embedding,
        later=True,
    )
    return (*first, *later, end)


_rolled_step = remembered(64)(_step)


def _forward_ends(counts: tuple[Num, ...]) -> list[tuple[str, int, Num]]:
    """The range that ends forward on a stage: instant name, index, and 1 where it is the last one.

    A pipeline stage may have no layer of the last ranges. Where that depends on the element of an
    array, each range that may be the last has an instant.
    """
    ends: list[tuple[str, int, Num]] = []
    no_later: Num = 1  # 1 where no later range has a layer
    for i in range(len(counts) - 1, -1, -1):
        present = holds(counts[i] > 0)
        name = "forward" if not ends else f"forward.{i}"
        if not nothing(present):
            ends.append((name, i, present * no_later))
        no_later = no_later * (1 - present)
        if nothing(no_later):
            break
    return ends or [("forward", len(counts) - 1, 0)]


def _micro_batch(
    ranges: tuple[LayerRange, ...],
    counts: tuple[Num, ...],
    full: tuple[Num, ...],
    flight: Num,
    head: Num,
    embedding: Num,
    before: tuple[Num, ...],
    *,
    later: bool,
    present: Num = 1,
    forwards: Num = 1,
    every: bool = False,
    both_ends: bool = False,
    reference: bool = False,
) -> Instants:
    """Forward, loss and backward of the micro-batch with which most activations are alive.

    `full`: layers of each range whose activations are alive when its forward ends; `before`: layers
    whose gradients were alive before it. `forwards` is 0 where no forward follows the first
    backward.
    """
    tag = LATER if later else ""
    word = ", later micro-batch" if later else ""
    old_grads = 1 if later else 0
    instants: list[StepInstant] = []

    def add(
        where: str, phase: str, title: str, exists: Num, layer: str = "", **fields: Any
    ) -> None:
        named = instant(where, phase, title + word, present=exists, micro_batch=tag, layer=layer)
        values: dict[str, Any] = {"grads": before, "later": later}
        values |= {"head_grads": old_grads * head, "embedding_grads": old_grads * embedding}
        instants.append(StepInstant(instant=named, **values | fields))

    last, none = len(ranges) - 1, tuple(0 for _ in full)
    low = tuple(a - b for a, b in zip(full, counts, strict=True))
    some = holds(flight > 0) * present
    layer_fields: dict[str, Any] = {"work": "layer", "inside_forward": True}
    for i in range(last if every else 0):
        title = f"forward, {ranges[i].title}"
        fields = {**layer_fields, "stretch": i, "saved": full[:i] + low[i:]}
        add(f"forward.{i}", FORWARD, title, some * forwards, **fields)
    for name, i, ends in _forward_ends(counts):
        minus = (*full[:i], larger(full[i] - 1, 0), *full[i + 1 :])
        fields = {**layer_fields, "stretch": i, "saved": minus}
        add(name, FORWARD, "forward, last layer", ends * some * forwards, **fields)
    in_head: dict[str, Any] = {"saved": full, "work": "head"}
    add("loss", FORWARD, "loss", head * some * forwards, **in_head, inside_forward=True)
    if reference:
        title = "forward of the reference model"
        add("reference", FORWARD, title, head * some, saved=full, work="reference")
    add("loss.backward", BACKWARD, "backward of the loss", head * some, **in_head)
    for i in range(last, -1, -1):
        title = f"backward, {ranges[i].title}"
        first, last_title = f"{title}: first layer", f"{title}: last layer"
        if title.endswith(" layer"):  # a layer by itself
            first = last_title = title
        exists = holds(counts[i] > 0) * some
        top = (*full[:i], larger(full[i] - 1, 0), *low[i + 1 :])
        above = counts if later else none[: i + 1] + counts[i + 1 :]
        fields = {"head_grads": head, "work": "layer", "stretch": i}
        alive: dict[str, Any] = {"saved": top, "grads": above, "layer": LAST}
        add(f"backward.{i}.last", BACKWARD, last_title, exists, **fields, **alive)
        if not every and (both_ends or not later):
            under = counts
            if not later:
                under = (*none[:i], larger(counts[i] - 1, 0), *counts[i + 1 :])
            alive = {"saved": full[:i] + low[i:], "grads": under, "layer": FIRST}
            add(f"backward.{i}.first", BACKWARD, first, exists, **fields, **alive)
    fields = {"saved": low, "grads": counts, "head_grads": head, "work": "embedding"}
    title = "backward of the embedding"
    add("embedding.backward", BACKWARD, title, embedding * some, **fields)
    return tuple(instants)


def with_old_gradients(instants: Instants) -> Instants:
    """The instants of a step, with all of the last step's gradients alive in the first forward:
    those that are alive at the end of a step, which is the last instant.
    """
    *_, end = instants
    old = {name: getattr(end, name) for name in ("grads", "head_grads", "embedding_grads")}
    return tuple(
        replace(i, **old) if i.instant.phase == FORWARD and not i.later else i for i in instants
    )


WHOLE_PASS = ("head", "reference")  # work for which all layers have run


def others_wait(counts: tuple[Num, ...], instants: Instants) -> Instants:
    """The instants of an unrolled run at which more is kept than by the micro-batch whose blocks
    have events: that has all below the layer at work, and in the loss all.

    `counts`: layers of each group.
    """
    ones, none = tuple(1 for _ in counts), tuple(0 for _ in counts)

    def own(at: StepInstant) -> tuple[Num, ...]:
        if at.work == "layer":
            return ones[: at.stretch] + none[at.stretch :]
        return ones if at.work in WHOLE_PASS else none

    return tuple(at for at in instants if counts != ones or at.saved != own(at))
