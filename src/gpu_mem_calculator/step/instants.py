"""The named instants of a training step on one pipeline stage.

Micro-batches in flight stack up in forward, backward frees them layer by layer while gradients
appear. Within a stretch of equal layers both are linear, so the highest instant of a stretch is
at one of its ends; the timeline has those ends and nothing in between. Later micro-batches find
every gradient there already, so only the top end of a stretch matters.
"""

from __future__ import annotations

from msgspec import Struct

from ..ledger.ledger import FIRST, LAST, LATER, Instant, instant
from ..ledger.num import Num, choose, holds, larger, nothing, smaller
from ..ledger.remember import remembered
from ..run.phases import BACKWARD, FORWARD, OPTIMIZER


class LayerRange(Struct, frozen=True):
    """Equal layers next to each other on one stage."""

    title: str
    count: Num


class StepInstant(Struct, frozen=True, kw_only=True, gc=False):
    """An instant, and what is alive then.

    `saved[i]` and `grads[i]`: whole layers of stretch i whose activations / gradients are alive,
    the layer at work not counted. `work` says what is running: "layer", "head", "loss", "embedding"
    or "" and `stretch` which layers.
    """

    instant: Instant
    saved: tuple[Num, ...]
    grads: tuple[Num, ...]
    head_grads: Num = 0
    embedding_grads: Num = 0
    work: str = ""
    stretch: int = 0
    later: bool = False  # gradients were there before this micro-batch
    inside_forward: bool = False

    @property
    def name(self) -> str:
        """The instant's name."""
        return self.instant.name


def in_flight(pp: Num, stage: Num, micro_batches: Num) -> Num:
    """Micro-batches whose activations a stage holds under 1F1B: min(pp - stage, m)."""
    return smaller(pp - stage, micro_batches)


def step(
    stretches: tuple[LayerRange, ...],
    *,
    flight: Num = 1,
    micro_batches: Num = 1,
    head: Num = 1,
    embedding: Num = 1,
    every: bool = False,
) -> tuple[StepInstant, ...]:
    """The beats of one step. `head` and `embedding` are 1 where the stage has them.

    `every`: forward has a beat for every stretch, not for the last alone. Rolled steps of plain
    numbers are remembered.
    """
    made = _step if every else _rolled_step
    return made(stretches, flight, micro_batches, head, embedding, every)


def _step(
    stretches: tuple[LayerRange, ...], flight: Num, micro_batches: Num, head: Num, embedding: Num,
    every: bool,
) -> tuple[StepInstant, ...]:  # fmt: skip
    counts = tuple(s.count for s in stretches)
    nothing = tuple(0 for _ in stretches)
    full = tuple(flight * n for n in counts)
    beats = _micro_batch(stretches, counts, full, flight, head, embedding, nothing, later=False,
                         every=every)  # fmt: skip
    again = holds(micro_batches > 1)
    more = choose(micro_batches > flight, flight, flight - 1)
    if isinstance(again, int) and not again:
        later: tuple[StepInstant, ...] = ()
    else:
        full = tuple(more * n for n in counts)
        later = _micro_batch(
            stretches, counts, full, more, head * again, embedding * again, counts,
            later=True, present=again, forwards=holds(micro_batches > flight), every=every,
        )  # fmt: skip
    end = StepInstant(
        instant=instant("optimizer", OPTIMIZER, "optimizer step"),
        saved=nothing, grads=counts, head_grads=head, embedding_grads=embedding, later=True,
    )  # fmt: skip
    return (*beats, *later, end)


_rolled_step = remembered(64)(_step)


def _forward_ends(counts: tuple[Num, ...]) -> list[tuple[str, int, Num]]:
    """The stretch that ends forward on a stage: a name, its number, and whether it is the one.

    A stage of a pipeline may have none of the last stretches. Where that depends on the element
    of an array, each stretch that may be the last one has an instant.
    """
    found: list[tuple[str, int, Num]] = []
    open_: Num = 1  # whether no later stretch has a layer
    for i in range(len(counts) - 1, -1, -1):
        here = holds(counts[i] > 0)
        name = "forward" if not found else f"forward.{i}"
        if not nothing(here):
            found.append((name, i, here * open_))
        open_ = open_ * (1 - here)
        if nothing(open_):
            break
    return found or [("forward", len(counts) - 1, 0)]


def _micro_batch(
    stretches: tuple[LayerRange, ...],
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
) -> tuple[StepInstant, ...]:
    """Forward, loss and backward of the micro-batch that stacks highest.

    `forwards` is 0 where no forward comes after the first backward.
    """
    tag = LATER if later else ""
    word = ", later micro-batch" if later else ""
    done = 1 if later else 0
    beats: list[StepInstant] = []

    def beat(
        where: str, phase: str, title: str, here: Num, layer: str = "", **rest: object
    ) -> None:
        made = instant(where, phase, title + word, present=here, micro_batch=tag, layer=layer)
        values: dict[str, object] = {"grads": before, "later": later}
        values |= {"head_grads": done * head, "embedding_grads": done * embedding}
        beats.append(StepInstant(instant=made, **values | rest))  # type: ignore[arg-type]

    last = len(stretches) - 1
    some = holds(flight > 0) * present
    for i in range(last if every else 0):
        begun = tuple(n - (counts[j] if j >= i else 0) for j, n in enumerate(full))
        beat(f"forward.{i}", FORWARD, f"forward, {stretches[i].title}", some * forwards,
             saved=begun, work="layer", stretch=i, inside_forward=True)  # fmt: skip
    for name, i, ends in _forward_ends(counts):
        minus = tuple(larger(n - 1, 0) if j == i else n for j, n in enumerate(full))
        beat(name, FORWARD, "forward, last layer", ends * some * forwards, saved=minus,
             work="layer", stretch=i, inside_forward=True)  # fmt: skip
    beat("loss", FORWARD, "loss", head * some * forwards, saved=full, work="head",
         inside_forward=True)  # fmt: skip
    beat("loss.backward", BACKWARD, "backward of the loss", head * some, saved=full, work="head")
    for i in range(last, -1, -1):
        title = f"backward, {stretches[i].title}"
        here = holds(counts[i] > 0) * some
        top = tuple(
            full[j] - counts[j] if j > i else larger(full[j] - 1, 0) if j == i else full[j]
            for j in range(len(full))
        )
        above = tuple(counts[j] if later or j > i else 0 for j in range(len(full)))
        beat(f"backward.{i}.last", BACKWARD, f"{title}: last layer", here, saved=top, grads=above,
             head_grads=head, work="layer", stretch=i, layer=LAST)  # fmt: skip
        if not later and not every:
            low = tuple(full[j] - (counts[j] if j >= i else 0) for j in range(len(full)))
            under = tuple(counts[j] if j > i else (larger(counts[j] - 1, 0) if j == i else 0)
                          for j in range(len(full)))  # fmt: skip
            beat(f"backward.{i}.first", BACKWARD, f"{title}: first layer", here, saved=low,
                 grads=under, head_grads=head, work="layer", stretch=i, layer=FIRST)  # fmt: skip
    low = tuple(full[j] - counts[j] for j in range(len(full)))
    beat("embedding.backward", BACKWARD, "backward of the embedding", embedding * some, saved=low,
         grads=counts, head_grads=head, work="embedding")  # fmt: skip
    return tuple(beats)
