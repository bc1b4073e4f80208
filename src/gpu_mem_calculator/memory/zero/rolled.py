"""The ledger of ZeRO 1 to 3 without a pipeline: at each instant the layer that is highest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import ACT, COMM, GRAD, PARAM, TEMP, Entry, Instant
from ...ledger.num import Num, choose, holds
from ...ledger.source import code
from ..activations import LAYER_CODE, LOSS_CODE, Walks
from ..moment import Moment
from ..run import Run
from ..stack import Block
from ..timeline import BACKWARD, FORWARD, OPTIMIZER, Beat
from ..walk import Walk
from .coordinator import Limits
from .cues import backward_part, forward_part
from .gathering import reads
from .heights import Heights, backward_heights, forward_heights
from .plan import Plan
from .stage3 import shape
from .tables import Case, Model, Place, Tables, tables

FILE12, FILE3 = "runtime/zero/stage_1_and_2.py", "runtime/zero/stage3.py"
GROUPS = (
    ("weights' gradients that are not reduced", GRAD, f"{FILE12}:1415, {FILE3}:1601"),
    ("gradient bucket", COMM, f"{FILE12}:3256"),
    ("gradients of the slice's parameters", GRAD, f"{FILE12}:2183 grads_in_partition"),
    ("bucket, copies for reduction", COMM, f"{FILE12}:1555, {FILE3}:1440,2024"),
    ("gathered parameters", PARAM, "runtime/zero/partitioned_param_coordinator.py:355-537"),
    ("shards, come from the host", COMM,
     "runtime/zero/partition_parameters.py:1359 until the gather has begun"),
)  # fmt: skip
EMBEDDED = "embedding: output"
TAGS = (("", ""), ("later.", ", later micro-batch"),
        ("first.later.", ", second micro-batch of the first step"))  # fmt: skip
IDLE = (Moment(), Moment())


class Spot(Struct, frozen=True, kw_only=True):
    """An instant before it is known which layer is at work.

    `heights` are the block's own tensors at each level of the table; `kept` are the bytes that one
    waiting layer of the stretch keeps, `saved` all layers that wait, but for those of the stretch.
    """

    name: str
    title: str
    phase: str
    place: Place
    heights: Heights
    saved: tuple[Num, ...]
    label: str
    work: str = "unit"
    stretch: int = 0
    kept: Num = 0


class Found(Struct, frozen=True):
    """The highest moment of a spot: how many layers of the stretch wait, and what is there."""

    waiting: Num
    moment: Moment
    parts: tuple[Num, ...]


def model_of(
    plan: Plan, stack: tuple[Block, ...], done: Walks, limits: Limits
) -> Model:
    """What DeepSpeed sees of a model."""
    full = [block.recompute == "full" for block in stack]
    stretches = tuple(
        (forward_part(walk.once if again else walk.script),
         backward_part(walk.script, again=again), int(block.count))
        for walk, block, again in zip(done.layers, stack, full, strict=True)
    )  # fmt: skip
    head, first = done.head.script, done.first
    found = Model(
        stretches,
        None if first is None else (forward_part(first.script),
                                    backward_part(first.script, again=False)),
        (forward_part(head), backward_part(head, again=False)),
        None if done.embedding is None else backward_part(done.embedding, again=False),
    )  # fmt: skip
    if plan.stage < 3:
        return found
    scripts = [walk.script for walk in (*done.layers, *((first,) if first else ()), done.head)]
    return Model(found.stretches, found.first, found.head, found.embedding,
                 shape(plan, stack), limits, tuple(map(reads, scripts)))  # fmt: skip


def spots(stack: tuple[Block, ...], done: Walks, *, plain: bool) -> Iterator[Spot]:
    """The instants of a micro-batch."""
    counts = tuple(int(block.count) for block in stack)
    last = len(stack) - 1
    yield Spot(name="begin", title="forward begins", phase=FORWARD, place=("begin", 0, False),
               heights=IDLE, saved=tuple(0 for _ in counts), label="")  # fmt: skip
    for i in range(len(stack)):
        below = tuple(n if j < i else 0 for j, n in enumerate(counts))
        name = "forward" if i == last else f"forward.{i}"
        for low in (True, False):
            if counts[i] > 1 or low:
                apart = low and counts[i] > 1
                word = ("first" if i == 0 else "lowest") if apart else ""
                yield _layer(f"{name}.{word}" if word else name, ("forward", i, low), stack[i],
                             done, below, plain=plain)  # fmt: skip
    head = done.head.script
    for name, word, phase, heights in (
        ("loss", "loss", FORWARD, forward_heights(head, plain=plain)),
        ("loss.backward", "head", BACKWARD, backward_heights(head, plain=plain)),
    ):
        yield Spot(name=name, title="loss" if phase == FORWARD else "backward of the loss",
                   phase=phase, place=(word, 0, False), heights=heights, saved=counts,
                   label="final norm, logits and loss", work="loss")  # fmt: skip
    for i in range(last, -1, -1):
        below = tuple(n if j < i else 0 for j, n in enumerate(counts))
        for low in (False, True):
            if counts[i] > 1 or low:
                word = "first" if low and counts[i] > 1 else "last"
                yield _layer(f"backward.{i}.{word}", ("backward", i, low), stack[i], done, below,
                             plain=plain)  # fmt: skip
    table, none = done.embedding, tuple(0 for _ in counts)
    yield Spot(name="embedding.backward", title="backward of the embedding", phase=BACKWARD,
               place=("embedding", 0, False), saved=none, work="embedding",
               heights=IDLE if table is None else backward_heights(table, plain=plain),
               label="embedding: at work")  # fmt: skip
    yield Spot(name="epilogue", title="gradients reduced", phase=BACKWARD, heights=IDLE,
               place=("epilogue", 0, False), saved=none, label="",
               work="embedding" if table is None else "hook")  # fmt: skip


def _layer(
    name: str, place: Place, block: Block, done: Walks, below: tuple[Num, ...], *, plain: bool
) -> Spot:
    """The layers of a stretch, or its first one."""
    word, index, low = place
    walk: Walk = done.layers[index]
    if low and index == 0 and done.first is not None:
        walk = done.first
    full, forward = block.recompute == "full", word == "forward"
    heights = (
        forward_heights(walk.once if full else walk.script, plain=plain) if forward else
        backward_heights(walk.script, plain=plain, again=full, output=full and block.reentrant)
    )  # fmt: skip
    which = "first layer" if low else "highest layer"
    return Spot(
        name=name, title=f"{word}, {block.title}: {which}", place=place, heights=heights,
        phase=FORWARD if forward else BACKWARD, saved=below, stretch=index,
        label=f"{block.title}: at work",
        kept=done.layers[index].input_bytes if full else done.layers[index].saved_bytes,
    )


def cases(plan: Plan, model: Model) -> tuple[list[tuple[Tables, ...]], Any]:
    """The tables of every pair of ranks and micro-batches, and which of them an element has."""
    ranks, micro = plan.ranks, plan.run.micro_batches
    if not (hasattr(ranks, "astype") or hasattr(micro, "astype")):
        return [tables(Case(plan, model, int(ranks), int(micro)))], None
    import numpy

    pairs = numpy.stack(numpy.broadcast_arrays(ranks, micro), axis=-1)
    unique, which = numpy.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    found = [tables(Case(plan, model, int(a), int(b))) for a, b in unique]
    return found, which.reshape(pairs.shape[:-1])


def highest(
    spot: Spot, found: list[Tables], which: Any, *, near: bool
) -> Found:
    """The highest of a spot's candidates. `near`: of the layers that wait one is on the GPU."""
    first = found[0][spot.place]
    if which is None:
        candidates: Iterable[tuple[int, int]] = first.best
    else:
        candidates = sorted({pair for tables in found for pair in tables[spot.place].best})
    best: Found | None = None
    top: Num = 0
    for waiting, level in candidates:
        moment = spot.heights[level]
        kept = (min(waiting, 1) if near else waiting) * spot.kept
        if which is None:
            total = kept + moment.total + first.rows[waiting][level][0]
            if best is None or total > top:
                best, top = Found(waiting, moment, ()), total
                chosen = waiting, level
            continue
        parts = _stacked(found, which, spot.place, waiting, level)
        total = kept + moment.total + sum(parts)
        if best is None:
            best, top = Found(waiting, moment, parts), total
        else:
            best, top = _either(total > top, Found(waiting, moment, parts), best), _max(total, top)
    assert best is not None
    return best if which is not None else Found(best.waiting, best.moment, first.parts(*chosen))


def _stacked(
    found: list[Tables], which: Any, place: Place, waiting: int, level: int
) -> tuple[Num, ...]:
    """The parts of a candidate, an array of the elements' own."""
    import numpy

    rows = numpy.asarray([tables[place].parts(waiting, level) for tables in found])
    return tuple(rows[:, group][which] for group in range(rows.shape[1]))


def _either(higher: Any, new: Found, old: Found) -> Found:
    parts = tuple(choose(higher, a, b) for a, b in zip(new.parts, old.parts, strict=True))
    moment = Moment(choose(higher, new.moment.act, old.moment.act), 0,
                    choose(higher, new.moment.temp, old.moment.temp))  # fmt: skip
    return Found(choose(higher, new.waiting, old.waiting), moment, parts)


def _max(a: Num, b: Num) -> Num:
    return choose(a > b, a, b)


def beats_and_entries(
    plan: Plan, stack: tuple[Block, ...], done: Walks, limits: Limits
) -> tuple[tuple[Beat, ...], list[Entry]]:
    """The instants of a step, and what blocks and DeepSpeed hold at each of them."""
    run = plan.run
    plain = all(type(n) is int for n in (run.batch, run.seq, run.arch.hidden))
    found, which = cases(plan, model_of(plan, stack, done, limits))
    near = bool(run.options.get("cpu_checkpointing"))
    here = tuple(spots(stack, done, plain=plain))
    beats: list[Beat] = []
    entries: list[Entry] = []
    again = holds(run.micro_batches > 1)
    for number, (tag, word) in enumerate(TAGS[: 3 if plan.stage == 3 else 2]):
        if number and isinstance(again, int) and not again:
            break
        mine = [several[number] for several in found]
        for spot in here:
            high = highest(spot, mine, which, near=near)
            beats.append(_beat(spot, high, tag, word, again if number else 1))
            entries += _entries(plan, spot, high, beats[-1])
    none = tuple(0 for _ in stack)
    entries.append(_left(plan, found, which))
    for name, title in (("optimizer.norm", "gradient norm"), ("optimizer.cast", "gradients cast to fp32"),
                        ("optimizer", "optimizer step")):  # fmt: skip
        instant = Instant(name=name, phase=OPTIMIZER, title=title)
        beats.append(Beat(instant=instant, saved=none, grads=none, later=True))
    return tuple(beats), entries


def first_layers_input(run: Run, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries in which the first layer's input is not counted twice where that layer runs forward.

    Learnt positions are added to the embedding's output, and a norm behind it keeps it.
    """
    arch = run.arch
    apart = len(arch.embedding) > 1 or arch.embedding_norm is not None
    for entry in entries:
        if entry.name == EMBEDDED and not apart:
            entry = replace(entry, live={name: copies for name, copies in entry.live.items()
                                         if not name.endswith(("begin", ".first"))})  # fmt: skip
        yield entry


def _left(plan: Plan, found: list[tuple[Tables, ...]], which: Any) -> Entry:
    """Gradients that the step finds."""
    place = ("step", 0, False)
    last = [several[1] for several in found]
    parts = last[0][place].parts(0, 0) if which is None else _stacked(last, which, place, 0, 0)
    name, kind, where = GROUPS[2]
    return Entry(name=name, kind=kind, bytes=plan.run.scaled(sum(parts)),
                 live={"optimizer.norm": 1, "optimizer.cast": 1},
                 source=code(f"deepspeed 0.19.8 {where}"))  # fmt: skip


def _beat(spot: Spot, high: Found, tag: str, word: str, present: Num) -> Beat:
    saved = spot.saved
    if spot.work == "unit":
        saved = tuple(high.waiting if i == spot.stretch else n for i, n in enumerate(saved))
    return Beat(
        instant=Instant(name=tag + spot.name, phase=spot.phase, title=spot.title + word,
                        present=present),
        saved=saved, grads=tuple(0 for _ in saved), work=spot.work, stretch=spot.stretch,
        later=bool(tag), inside_forward=spot.phase == FORWARD,
    )  # fmt: skip


def _entries(plan: Plan, spot: Spot, high: Found, beat: Beat) -> Iterator[Entry]:
    source = LOSS_CODE if spot.work == "loss" else LAYER_CODE
    rows = [
        (spot.label, ACT, high.moment.act, source),
        (f"{spot.label}, kernel workspace", TEMP, high.moment.temp, source),
    ]
    for (name, kind, where), size in zip(GROUPS, high.parts, strict=True):
        rows.append((name, kind, plan.run.scaled(size), code(f"deepspeed 0.19.8 {where}")))
    for name, kind, size, where in rows:
        if not (isinstance(size, int) and size == 0):
            yield Entry(name=name, kind=kind, bytes=size, live={beat.name: 1}, source=where)
