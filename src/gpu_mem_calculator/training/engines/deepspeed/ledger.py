"""Instants and entries of ZeRO 1 to 3 without a pipeline: at each instant the highest layer's, from
the blocks of the model with DeepSpeed's hook points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import add
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger import ledger as kinds
from ....ledger.ledger import COMM, GRAD, PARAM, Entry, Instant, Ledger, instant
from ....ledger.num import EMPTY, Bytes, Num, holds, nothing
from ....ledger.remember import Same, remembered
from ....ledger.source import code
from ....pytorch.autograd.events import BlockEvents
from ....pytorch.autograd.peak import PeakParts
from ....run.phases import FORWARD, OPTIMIZER
from ....run.recompute import FULL
from ....run.run import Run
from ...step.activations import StageWalks
from ...step.instants import Instants, StepInstant
from ...step.layer_groups import LayerGroups
from ...step.layer_walks import LayerSources
from ...step.workspaces import workspace_entries
from .cache_key import CacheKey, plain
from .gather import weight_reads
from .hook_points import HookedBlock, hooked_backward, hooked_forward
from .instants import BlockPeaks, ZeroInstant, zero_instants
from .layout import STEP, ZeroLayout
from .options import option
from .peak_tables import BlockTable, LevelTable, Tables, tables
from .stage3 import shape
from .states import state_entries


def block_table(plan: ZeroLayout, stack: LayerGroups, walks: StageWalks) -> BlockTable:
    """The hooked blocks of a model; in stage 3 with its modules and the weights they read."""

    def both(
        events: BlockEvents, once: BlockEvents | None = None
    ) -> tuple[HookedBlock, HookedBlock]:
        return hooked_forward(once or events), hooked_backward(events, again=once is not None)

    groups = tuple(
        (*both(walk.script, walk.once if group.recompute == FULL else None), int(group.count))
        for walk, group in zip(walks.layers, stack, strict=True)
    )
    first = None if walks.first is None else both(walks.first.script)
    table = None if walks.embedding is None else hooked_backward(walks.embedding, again=False)
    head = both(walks.head.script)
    if plan.stage < 3:
        return BlockTable(groups, first, head, table)
    readers = (*walks.layers, *((walks.first,) if walks.first else ()), walks.head)
    reads = tuple(weight_reads(walk.script) for walk in readers)
    return BlockTable(groups, first, head, table, shape(plan, stack), reads)


FILE12, FILE3 = "runtime/zero/stage_1_and_2.py", "runtime/zero/stage3.py"
ON_ITS_WAY = "runtime/zero/partition_parameters.py:1359 until the gather has begun"
GROUPS = tuple(
    (name, kind, code(f"deepspeed 0.19.8 {where}"))
    for name, kind, where in (
        ("weights' gradients that are not reduced", GRAD, f"{FILE12}:1415, {FILE3}:1601"),
        ("gradient bucket", COMM, f"{FILE12}:3256"),
        ("gradients of the slice's parameters", GRAD, f"{FILE12}:2183 grads_in_partition"),
        ("bucket, copies for reduction", COMM, f"{FILE12}:1555, {FILE3}:1440,2024"),
        ("gathered parameters", PARAM, "runtime/zero/partitioned_param_coordinator.py:355-537"),
        ("shards, come from the host", COMM, ON_ITS_WAY),
    )
)
TAGS = (
    ("", "", ""),
    ("", kinds.LATER, ", later micro-batch"),
    (kinds.FIRST_STEP, kinds.LATER, ", second micro-batch of the first step"),
    (kinds.FIRST_STEP, "", ", first micro-batch of all"),
)


class PeakPoint(Struct, frozen=True):
    """The peak of an instant.

    waiting: layers of the group that wait for backward
    block: bytes of the block's own tensors
    parts: bytes of each of DeepSpeed's `GROUPS`
    """

    waiting: Num
    block: PeakParts
    parts: tuple[Bytes, ...]


def cases(plan: ZeroLayout, model: BlockTable) -> tuple[list[tuple[Tables, ...]], Any]:
    """The tables of every pair of ranks and micro-batches, and for arrays the index of each
    element's tables, else None.
    """
    ranks: Any = plan.ranks
    micro: Any = plan.run.micro_batches
    if not (hasattr(ranks, "astype") or hasattr(micro, "astype")):
        return [tables(CacheKey(plain(plan, int(ranks), int(micro)), model))], None
    import numpy

    pairs = numpy.stack(numpy.broadcast_arrays(ranks, micro), axis=-1)
    unique, which = numpy.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    keys = (CacheKey(plain(plan, int(a), int(b)), model) for a, b in unique)
    each: list[tuple[Tables, ...]] = [tables(key) for key in keys]
    return each, which.reshape(pairs.shape[:-1])


def highest(instant: ZeroInstant, tables: list[LevelTable], which: Any, *, near: bool) -> PeakPoint:
    """The peak of an instant, over all its levels and numbers of waiting layers.

    tables: its table for each pair of ranks and micro-batches
    which: for arrays the index of each element's table, else None
    near: of the layers that wait one has its checkpoint on the GPU (cpu_checkpointing)
    """
    near = near and instant.checkpoint
    if which is not None:
        tables, which = _distinct(tables, which)
    block_bytes, layer_bytes = [total for total, _ in instant.peaks], instant.layer_bytes
    if which is not None or hasattr(sum(block_bytes, layer_bytes), "astype"):
        return _highest_of_arrays(instant, tables, which, near=near)
    pairs = tables[0].best
    if near:
        acts = [(layer_bytes if waiting else 0) + block_bytes[level] for waiting, level in pairs]
    else:
        acts = [waiting * layer_bytes + block_bytes[level] for waiting, level in pairs]
    totals = list(map(add, acts, tables[0].heights))
    waiting, level = pairs[totals.index(max(totals))]
    return PeakPoint(waiting, instant.peaks[level][1], tables[0].parts(waiting, level))


def _distinct(tables: list[LevelTable], which: Any) -> tuple[list[LevelTable], Any]:
    """Each table once, and the index of each element's among them; None where there is one."""
    import numpy as np

    known = {id(table): table for table in tables}
    if len(known) < len(tables):
        places = {number: place for place, number in enumerate(known)}
        which = np.array([places[id(table)] for table in tables])[which]
    return [*known.values()], which if len(known) > 1 else None


def _highest_of_arrays(
    instant: ZeroInstant, tables: list[LevelTable], which: Any, *, near: bool
) -> PeakPoint:
    """`highest` for arrays: all candidates of a table at once."""
    import numpy as np

    first: Any = instant.peaks[0][0]
    shape = np.broadcast_shapes(*map(np.shape, (first, instant.layer_bytes, which)))
    acts, temps = _block_arrays(Same(instant.peaks), shape)
    totals, layer = acts + temps, np.broadcast_to(instant.layer_bytes, shape).ravel()
    index = None if which is None else np.broadcast_to(which, shape).ravel()
    found = np.zeros((3 + len(GROUPS), layer.size), dtype="int64")
    every = np.arange(layer.size)
    for number, table in enumerate(tables):
        waiting, levels, heights = table.arrays
        places = every if index is None else np.flatnonzero(index == number)
        kept = waiting > 0 if near else waiting
        alive = kept[:, None] * layer[places] + totals[:, places][levels]
        best = (alive + heights[:, None]).argmax(axis=0)
        level = levels[best]
        found[:3, places] = waiting[best], acts[level, places], temps[level, places]
        for candidate in {*best.tolist()}:
            at = places[best == candidate]
            found[3:, at] = table.candidate_parts(candidate)[:, None]
    filled: Any = found.any(axis=1)
    rows: Any = zip(found, filled.tolist(), strict=True)
    sizes: list[Any] = [row.reshape(shape) if some else 0 for row, some in rows]
    waits, act, temp, *parts = sizes
    return PeakPoint(waits, PeakParts(act, EMPTY, temp), tuple(parts))


@remembered(64, always=True)
def _block_arrays(peaks: Same[BlockPeaks], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Activations and workspace of a block at each level: a row for each, flat."""
    import numpy as np

    def rows(sizes: list[Any]) -> Any:
        whole = (one if np.shape(one) == shape else np.broadcast_to(one, shape) for one in sizes)
        return np.array(list(whole)).reshape(len(sizes), -1)

    parts = [part for _, part in peaks.value]
    return rows([part.act for part in parts]), rows([part.temp for part in parts])


def _parts(tables: list[LevelTable], which: Any, waiting: int, level: int) -> tuple[Bytes, ...]:
    """Bytes of each of DeepSpeed's groups; arrays where the elements differ."""
    if which is None:
        return tables[0].parts(waiting, level)
    import numpy

    rows = numpy.asarray([table.parts(waiting, level) for table in tables])
    return tuple(rows[:, group][which] for group in range(rows.shape[1]))


def instants_and_entries(
    plan: ZeroLayout, stack: LayerGroups, walks: StageWalks
) -> tuple[Instants, list[Entry]]:
    """The instants of a step, and the entries of what blocks and DeepSpeed hold at each of them."""
    run = plan.run
    each, which = cases(plan, block_table(plan, stack, walks))
    near = bool(option(run, "cpu_checkpointing"))
    zero_points = tuple(zero_instants(stack, walks))
    instants: list[StepInstant] = []
    entries: list[Entry] = []
    again = holds(run.micro_batches > 1)
    for number, (step, tag, word) in enumerate(TAGS):
        later = bool(tag)
        if later and isinstance(again, int) and not again:
            continue
        for zero_instant in zero_points:
            chosen = [several[number].get(zero_instant.place) for several in each]
            if not any(chosen):
                continue
            usual = [several[later][zero_instant.place] for several in each]
            either = [a or b for a, b in zip(chosen, usual, strict=True)]
            high = highest(zero_instant, either, which, near=near)
            named_instant = instant(
                zero_instant.name,
                zero_instant.phase,
                zero_instant.title + word,
                step=step,
                micro_batch=tag,
                layer=zero_instant.layer,
                present=again if later else 1,
            )
            instants.append(_step_instant(zero_instant, high, named_instant))
            entries += _entries(plan, zero_instant, high, instants[-1], walks.sources)
    none = tuple(0 for _ in stack)
    entries.append(_step_gradients(plan, each, which))
    for name, title in (*STEP, ("optimizer", "optimizer step")):
        named = instant(name, OPTIMIZER, title)
        instants.append(StepInstant(instant=named, saved=none, grads=none, later=True))
    return tuple(instants), entries


def stepwise_ledger(plan: ZeroLayout, saved: Iterable[Entry], at_work: Iterable[Entry]) -> Ledger:
    """The ledger of a plan with these instants: its states, what layers have saved, and what is at
    work.
    """
    entries = (*state_entries(plan), *saved, *at_work)
    return plan.ledger((*entries, *workspace_entries(plan.run, plan.instants)))


def without_first_input(run: Run, entries: Iterable[Entry], instants: Instants) -> Iterator[Entry]:
    """The entries, with the embedding's output left out where the first layer runs forward: it is
    that layer's input, which the layer counts.

    Not where learnt positions are added to the embedding's output, or a norm after it saves it.
    """
    arch = run.arch
    apart = len(arch.embedding) > 1 or arch.embedding_norm is not None
    out = {b.name for b in instants if b.instant.layer == kinds.FIRST or b.instant.where == "begin"}
    for entry in entries:
        if entry.role == kinds.EMBEDDED and not apart:
            live = {name: copies for name, copies in entry.live.items() if name not in out}
            entry = replace(entry, live=live)
        yield entry


def _step_gradients(plan: ZeroLayout, each: list[tuple[Tables, ...]], which: Any) -> Entry:
    """Gradients that are alive when the optimizer's step begins."""
    place = ("step", 0, False)
    last = [several[1] for several in each]
    parts = _parts([tables[place] for tables in last], which, 0, 0)
    name, kind, source = GROUPS[2]
    live = dict.fromkeys(plan.slice_gradient_instants, 1)
    return Entry(name, kind, sum(parts, EMPTY), live, source)


def _step_instant(
    zero_instant: ZeroInstant, high: PeakPoint, named_instant: Instant
) -> StepInstant:
    saved = zero_instant.saved
    if zero_instant.work == "unit":
        saved = tuple(high.waiting if i == zero_instant.group else n for i, n in enumerate(saved))
    return StepInstant(
        instant=named_instant,
        saved=saved,
        grads=tuple(0 for _ in saved),
        work=zero_instant.work,
        stretch=zero_instant.group,
        later=bool(named_instant.micro_batch),
        inside_forward=zero_instant.phase == FORWARD,
    )


def _entries(
    plan: ZeroLayout,
    zero_instant: ZeroInstant,
    high: PeakPoint,
    step_instant: StepInstant,
    sources: LayerSources,
) -> Iterator[Entry]:
    source = sources.head if zero_instant.work == "loss" else sources.layer
    rows = [
        (zero_instant.label, kinds.ACT, high.block.act, source),
        (f"{zero_instant.label}, kernel workspace", kinds.TEMP, high.block.temp, source),
    ]
    groups = zip(GROUPS, high.parts, strict=True)
    rows += [(name, kind, size, origin) for (name, kind, origin), size in groups]
    for name, kind, size, origin in rows:
        if not nothing(size):
            yield Entry(name, kind, size, {step_instant.name: 1}, origin)
