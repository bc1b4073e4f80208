"""What of a training step does not depend on sizes: its parts in their order, and whose each tensor
is. It is read from the stream that the replay gets, whose last step all later ones repeat.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.remember import Same, remembered
from ..training.step.block_events import BlockRun
from ..training.step.refill import WrittenStream
from ..training.step.stream import STEPS
from ..training.step.tensor_names import tensor_names


class Stretch(Struct, frozen=True, kw_only=True):
    """The part of a step in which one block runs in one direction, or the optimizer steps.

    - name: of the instant; title, phase: in the ledger's words
    - micro_batch: counts from 0; -1: none
    - step: it is of the last step; block: the layer's index, HEAD, EMBEDDING, or None
    - begin, end: its events
    """

    name: str
    title: str
    phase: str
    step: bool
    micro_batch: int
    block: int | None
    begin: int
    end: int


class Owner(NamedTuple):
    """To what tensors are added up: what a block of a micro-batch has of a kind, or one name."""

    kind: str
    name: str
    block: int | None = None
    micro_batch: int = -1


class Life(NamedTuple):
    """A tensor of a step, by its number, and the places of the events that make and free it."""

    tensor: int
    made: int
    freed: int


class KindEvents(NamedTuple):
    """The events of one kind's tensors, and their places in the step."""

    kind: str
    events: list[int]
    places: list[int]


class StepOutline(Struct, frozen=True, kw_only=True):
    """What does not depend on sizes. Tensors of the step are numbered from 0, events count from
    its first one.

    - stretches: those that are drawn, in order; layers: of the model, or of the pipeline stage
    - tensors: the number in the stream of each; names: its name
    - events: `i` makes tensor i, `~i` frees it; kinds: those of each kind
    - owners: all, and by its index the owner of each event's tensor (`owned`) and the lives of its
      tensors
    """

    stretches: tuple[Stretch, ...]
    layers: int
    tensors: list[int]
    names: list[str]
    events: list[int]
    kinds: list[KindEvents]
    owners: list[Owner]
    owned: list[int]
    lives: list[list[Life]]


@remembered(4)
def step_shape(stream: Same[WrittenStream]) -> StepOutline:
    """The last step of a stream."""
    written = stream.value
    events, last = written.stream.events, f"s{STEPS - 1}."
    first = max(end for end, title in written.stream.marks if not title.startswith(last))
    while events[first] < 0:  # gradients of the step before are freed
        first += 1
    every = _visits(written)
    of_step = [one for one in every if one.step and one.end > max(first, one.begin)]
    of_step[0] = replace(of_step[0], begin=first)
    end = of_step[-1].end
    numbers = {
        tensor: number
        for number, tensor in enumerate(dict.fromkeys(map(_tensor, events[first:end])))
    }
    owners, owned_by, lives = _owners(written, every, numbers, first)
    made = [numbers[event] if event >= 0 else ~numbers[~event] for event in events[first:end]]
    kinds: dict[str, KindEvents] = {}
    for place, event in enumerate(made):
        kind = owners[owned_by[_tensor(event)]].kind
        _, listed, places = kinds.setdefault(kind, KindEvents(kind, [], []))
        listed.append(event)
        places.append(place)
    layers = 1 + max(one.block or 0 for one in of_step)
    several = 1 + max(one.micro_batch for one in of_step)
    moved = (replace(one, begin=one.begin - first, end=one.end - first) for one in _drawn(of_step))
    names = tensor_names(written)
    return StepOutline(
        stretches=tuple(_titled(one, layers, several) for one in moved),
        layers=layers,
        tensors=list(numbers),
        names=[names[tensor].name for tensor in numbers],
        events=made,
        kinds=list(kinds.values()),
        owners=owners,
        owned=[owned_by[_tensor(event)] for event in made],
        lives=lives,
    )


def _tensor(event: int) -> int:
    """The tensor that an event makes or frees."""
    return event if event >= 0 else ~event


def _owners(
    written: WrittenStream, every: list[Stretch], numbers: Mapping[int, int], first: int
) -> tuple[list[Owner], list[int], list[list[Life]]]:
    """The owners of a step's tensors, that of each tensor, and the lives of each one's tensors."""
    names, events = tensor_names(written), written.stream.events
    made = {event: at for at, event in enumerate(events) if event >= 0}
    freed = {~event: at for at, event in enumerate(events) if event < 0}
    ends = [one.end for one in every]
    found: dict[Owner, int] = {}
    owned_by: list[int] = []
    lives: list[list[Life]] = []
    for tensor, number in numbers.items():
        kind, name, own = names[tensor]
        at = every[min(bisect_right(ends, made[tensor]), len(every) - 1)]
        owner = Owner(kind, name)
        if own and at.block is not None:
            owner = Owner(kind, "", at.block, at.micro_batch)
        owned_by.append(found.setdefault(owner, len(found)))
        if owned_by[-1] == len(lives):
            lives.append([])
        end = freed.get(tensor, len(events))
        lives[owned_by[-1]].append(Life(number, made[tensor] - first, end - first))
    return list(found), owned_by, lives


def _titled(one: Stretch, layers: int, micro_batches: int) -> Stretch:
    """A stretch with its layer and micro-batch in its title."""
    title = one.title.partition(", later")[0].partition(", middle")[0]
    if one.block is not None and one.block >= 0:
        title = f"{one.phase}, layer {one.block + 1} of {layers}"
    if micro_batches > 1 and one.micro_batch >= 0:
        title = f"{title}, micro-batch {one.micro_batch + 1}"
    return replace(one, title=title)


def _drawn(visits: list[Stretch]) -> tuple[Stretch, ...]:
    """A stretch for each block that runs, with what the engine does before and after it. Of
    micro-batches that follow each other only the first and the last are drawn.
    """
    merged: list[Stretch] = []
    for _, group in groupby(visits, lambda one: (one.phase, one.micro_batch)):
        merged += _by_block(list(group))
    batches = [one.micro_batch for one in merged if one.micro_batch >= 0]
    if batches and batches == sorted(batches):
        ends = (-1, batches[0], batches[-1])
        merged = [one for one in merged if one.micro_batch in ends]
    return tuple(merged)


def _by_block(visits: list[Stretch]) -> Iterator[Stretch]:
    """Visits of one phase, together with the block whose name begins theirs, else the next one."""
    blocks = [number for number, one in enumerate(visits) if one.block is not None]
    if not blocks:
        yield from visits
        return
    begin = 0
    for number, following in zip(blocks, [*blocks[1:], len(visits)], strict=True):
        last = number
        while last + 1 < following and (
            following == len(visits) or visits[last + 1].name.startswith(visits[number].name)
        ):
            last += 1
        yield replace(visits[number], begin=visits[begin].begin, end=visits[last].end)
        begin = last + 1


def _visits(written: WrittenStream) -> list[Stretch]:
    """What runs at each instant that the writer visits, in the order of the stream."""
    ledger, stream = written.ledger, written.stream
    instants = {one.name: one for one in ledger.instants}
    ends, titles = [end for end, _ in stream.marks], [title for _, title in stream.marks]
    found: list[Stretch] = []
    begin = 0
    for name, end in stream.visits:
        mark = titles[min(bisect_left(ends, end), len(titles) - 1)]
        one, play = instants[name], ledger.plays.get(name)
        found.append(
            Stretch(
                name=name,
                title=one.title,
                phase=one.phase,
                step=mark.startswith(f"s{STEPS - 1}."),
                micro_batch=_micro_batch(mark),
                block=play.block if isinstance(play, BlockRun) else None,
                begin=begin,
                end=end,
            )
        )
        begin = end
    return found


def _micro_batch(mark: str) -> int:
    """The number of a mark's micro-batch, such as s2.a0.fwd."""
    part = mark.split(".")[1] if "." in mark else ""
    return int(part[1:]) if part[:1] == "a" else -1
