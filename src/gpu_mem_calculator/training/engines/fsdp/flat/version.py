"""What FSDP version 1 does in its own way: the entries of its parameters, and its stream.

With CPUOffload shards, their gradients and the optimizer are in host memory. Every shard and its
gradient are pinned before the first forward; a sharded gradient also stays on the GPU until
backward is over. torch 2.13 distributed/fsdp: `D` in the sources.

The stream has freed blocks that the GPU has yet to finish with. A gathered parameter is allocated
on one CUDA stream and read by forward on another. The views of it are taken on the first one, so
autograd copies the gradients into the flat one there, and that is reduced on a third one.
`record_stream` keeps a block that another stream reads after its free until the GPU has come so
far. In backward a gathered parameter is freed on its own stream, and not kept.

The host runs ahead of the GPU. With `limit_all_gathers` it waits before a gather for the last but
one free of a gathered parameter (torch 2.13 D/_runtime_utils.py:290 _unshard, _limiter_utils.py).
It always waits at the end of a phase. Where memory is short, the allocator waits.

Gathered flat parameters, and the copies of shards that are gathered.

With one rank there is nothing to gather: there, a copy of the flat parameter in the compute dtype
exists while a unit computes (`_mp_shard`). torch 2.13 distributed/fsdp: `D` in the sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from .....ledger.ledger import (
    COMM,
    CPU,
    GATHERED,
    GRAD,
    PARAM,
    RECORDED,
    TEMP,
    Entry,
    Ledger,
    Writer,
)
from .....ledger.num import EMPTY, Num, larger, nothing, sized
from .....ledger.source import code
from .....pytorch.autograd.events import BlockEvents, EventRecorder
from .....pytorch.modelling.huggingface.head import head_walk
from .....pytorch.modelling.huggingface.setting import BlockSetting
from .....pytorch.replay.stream import UNTIL_MARK
from .....run.phases import FORWARD, OPTIMIZER
from .....run.run import Run
from ....optimizers import OPTIMIZERS
from ....step.activations import FREE_TOGETHER, StageWalks
from ....step.activations import walks as walk_stage
from ....step.cycles import PhaseInstants
from ....step.layer_groups import LayerGroups
from ....step.model_inputs import named_until_return
from ....step.states import buffer_entry
from ....step.stream_phases import Phase
from ....step.stream_writer import StreamWriter
from ..accumulation import accumulates, reduces
from ..cache import ShardEntries, cached_without_tokens
from ..instants import START, FsdpInstant
from ..layout import NO_LAYER, LayerPicker, UnitPart, one_layer
from ..offload import PINNED, host_step_entries, trained_shards
from ..options import loss_outside, option
from ..unit_ledger import FsdpVersion
from .instants import POST
from .layout import PRE_UNSHARD, UNSHARD, FlatLayout, flat_layout
from .reduce import gradient_entries, output_entries, sharded_gradient_entries
from .startup import LAZY, shard_entries, startup_entries, startup_instants
from .units import FlatUnit

GATHERED_CODE = code("torch 2.13 D/_flat_param.py:1396 unshard, 1816 _free_unsharded_flat_param")
CAST_CODE = code("torch 2.13 D/_flat_param.py:1379 _use_low_precision_shard, 1516: freed after")
ALONE_CODE = code("torch 2.13 D/_flat_param.py:1316 pre_unshard, 1791 post_reshard: NO_SHARD")
VIEWED_CODE = code("torch 2.13 D/_flat_param.py flat_param_to: views of the copy, with offload")
LAZY_CODE = code("torch 2.13 D/_flat_param.py:1222 init_flat_param_attributes")
WITHOUT_ROOT = ("lazy", "reduce.root", "scatter.root", "optimizer")


def gathered_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Gathered parameters: of the root from forward to backward, of the layers at work."""
    part = UnitPart("gathered parameters", PARAM, GATHERED_CODE, UNSHARD, role=GATHERED)
    pick = _gathered_layers(plan)
    yield part.of_root(plan, plan.root.gathered, partial(_root_gathered, plan))
    yield from part.of_layers(plan, attrgetter("gathered"), pick)
    part = UnitPart("copy of the parameters", PARAM, ALONE_CODE, PRE_UNSHARD)
    yield part.of_root(plan, plan.root.alone, _root_at_work)
    yield from part.of_layers(plan, attrgetter("alone"), _at_work(plan))


def _root_at_work(instant: FsdpInstant) -> Num:
    return int(instant.action not in WITHOUT_ROOT)


def _stays_unreduced(plan: FlatLayout, instant: FsdpInstant) -> bool:
    """Whether units that stay gathered after forward are gathered because an earlier micro-batch,
    or this one, does not reduce its gradients (torch 2.13 D/_runtime_utils.py
    _should_free_in_backward).
    """
    if not (plan.stays_gathered and accumulates(plan.run)) or instant.action == "optimizer":
        return False
    forward = instant.step.instant.phase == FORWARD
    return instant.step.later if forward else not reduces(plan.run, instant)


def _root_gathered(plan: FlatLayout, instant: FsdpInstant) -> Num:
    return int(_stays_unreduced(plan, instant)) or _root_at_work(instant)


def _gathered_layers(plan: FlatLayout) -> LayerPicker:
    if not plan.stays_gathered:
        return _at_work(plan)

    def pick(instant: FsdpInstant) -> range:
        if _stays_unreduced(plan, instant):
            return range(len(plan.layers))
        return _gathered_so_far(instant)

    return pick


def _at_work(plan: FlatLayout) -> LayerPicker:
    """The layers that are gathered where each is freed after its forward and its backward."""
    below, behind = int(plan.runs_ahead), int(plan.runs_behind)
    top = len(plan.layers)

    def pick(instant: FsdpInstant) -> range:
        layer, action = instant.layer, instant.action
        if action in ("flat", "regather"):
            return one_layer(layer)
        if action == "root.ahead":
            return one_layer(0)
        if action in ("ahead", "forward"):
            return range(layer, layer + 1 + int(plan.ahead))
        if action == "loss.backward" and loss_outside(plan.run):
            return NO_LAYER  # the root asks for it once the logits have a gradient
        if action in ("prefetch", "loss.backward", "layer", "flatten"):
            return range(layer - below, min(layer + 1, top))
        if action in ("after", "reduce", "scatter"):
            return range(layer - behind, layer)
        return NO_LAYER

    return pick


def _gathered_so_far(instant: FsdpInstant) -> range:
    """The layers that are gathered where each is freed after its backward alone."""
    layer, action = instant.layer, instant.action
    if action in ("after", "reduce", "scatter"):
        return range(layer)
    if action == "root.ahead":
        return one_layer(0)
    return range(layer + 1 + int(action == "ahead")) if layer >= 0 else NO_LAYER


def shard_copy_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Copies of shards that are being gathered, which are freed once they are."""
    gathers = {"flat": 0, "root.ahead": 1, "ahead": 1, "prefetch": -1, "regather": 0, "after": -1}

    def copied(instant: FsdpInstant) -> range:
        step = gathers.get(instant.action)
        stays = plan.stays_gathered and instant.step.instant.phase != FORWARD
        stays = stays or _stays_unreduced(plan, instant)
        return NO_LAYER if step is None or stays else one_layer(instant.layer + step)

    def root_copied(instant: FsdpInstant) -> Num:
        return int(instant.action == "root.flat" and not _stays_unreduced(plan, instant))

    casts = plan.bits.compute != plan.bits.stored
    if plan.offload and not casts and option(plan.run, "use_orig_params"):
        # the parameters are views of the copy as long as the unit is gathered
        part = UnitPart("copy of the shard", COMM, VIEWED_CODE, PRE_UNSHARD)
        yield part.of_root(plan, plan.root.cast, _root_at_work)
        yield from part.of_layers(plan, attrgetter("cast"), _gathered_layers(plan))
        return

    def events(unit: FlatUnit) -> BlockEvents:
        """Under offload, the shard is copied to the GPU and cast there."""
        recorder = EventRecorder()
        cast = recorder.weight(unit.cast)
        recorder.over((recorder.weight(unit.shard),))
        return recorder.forward_only([cast])

    copies = plan.offload and casts and plan.run.unrolled
    part = UnitPart(
        "copy of the shard", COMM, CAST_CODE, PRE_UNSHARD, events=events if copies else None
    )
    yield part.of_root(plan, plan.root.cast, root_copied)
    yield from part.of_layers(plan, attrgetter("cast"), copied)


def lazy_entry(plan: FlatLayout) -> Iterator[Entry]:
    """Buffers that are allocated and freed at once before the first forward: of each unit its cast
    shard, its gathered parameter, and that in the stored dtype.
    """
    recorder, casts = EventRecorder(), plan.bits.compute != plan.bits.stored
    largest = EMPTY
    layers = plan.layers if plan.run.unrolled else range(len(plan.kinds))
    for unit in (plan.root, *(plan.kinds[kind][1] for kind in layers)):
        whole = unit.gathered * plan.bits.stored // plan.bits.compute if casts else EMPTY
        copy = unit.cast + unit.alone if casts else EMPTY
        for size in (copy, unit.gathered, whole):
            if not nothing(size):
                recorder.over((recorder.weight(size),))
                largest = larger(largest, size)
    first = (i.step for i in plan.instants if i.action == "lazy" and i.step.instant.step)
    live: dict[str, Num] = dict.fromkeys((LAZY.name, *(step.name for step in first)), 1)
    name = "buffers that are allocated and freed"
    script = recorder.forward_only(()) if plan.run.unrolled else None
    yield Entry(name, COMM, largest, live, LAZY_CODE, script=script)


PINNED_CODE = code(f"torch 2.13 D/_flat_param.py:1256 init_flat_param_attributes; {PINNED}")
MADE_CODE = code("torch 2.13 D/_init_utils.py:582: shards go to pageable memory first")


def host_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Parameters and gradients in pinned memory, a power of two of bytes for each unit."""
    steady: dict[str, Num] = {i.step.name: 1 for i in plan.instants}
    for title, count, unit in plan.units:
        name, size = f"{title}: sharded parameters, pinned", unit.pinned * count
        yield Entry(name, PARAM, size, steady, PINNED_CODE, place=CPU)
        name, size = f"{title}: sharded gradients, pinned", unit.pinned_grads * count
        yield Entry(name, GRAD, size, steady, PINNED_CODE, place=CPU)
        name, size = f"{title}: sharded parameters, not pinned yet", unit.shard * count
        yield Entry(name, PARAM, size, {START.name: 1}, MADE_CODE, place=CPU)


NORM_CODE = code("torch 2.13 D/fully_sharded_data_parallel.py:1085 clip_grad_norm_, 2126: a norm")
NORM_BYTES = 512  # a scalar's block


@cached_without_tokens
def state_entries(run: Run, stack: LayerGroups) -> ShardEntries:
    """The entries of a run's parameters; cached for equal runs but for batch and sequence."""
    plan = flat_layout(run, stack)
    startup = startup_instants(plan)
    buffers = buffer_entry(run, plan.step_instants)
    live = {**{i.name: 1 for i in startup}, **buffers.live}
    shards = (*shard_entries(plan), *startup_entries(plan), replace(buffers, live=live))
    units = (
        *lazy_entry(plan),
        *shard_copy_entries(plan),
        *gathered_entries(plan),
        *gradient_entries(plan),
        *output_entries(plan),
        *sharded_gradient_entries(plan),
        *_step_entries(plan),
        *(host_entries(plan) if plan.offload else ()),
    )
    return ShardEntries(plan, startup, shards, units)


def _step_entries(plan: FlatLayout) -> Iterator[Entry]:
    """The optimizer's states and temporaries on this rank's shards, and gradient clipping."""
    run, trained = plan.run, trained_shards(plan)
    if plan.offload:
        yield from host_step_entries(plan, trained, plan.bits.stored)
        return
    sizes = [*plan.root.states]
    for kind in plan.layers if run.unrolled else ():
        sizes += plan.kinds[kind][1].states
    stepped = [int(size) for size in sizes if int(size)] if run.unrolled else []
    default = OPTIMIZERS[run.optimizer].default
    yield from trained.stepped(plan, plan.bits.stored, default, sizes=stepped)
    yield from _norm_entries(plan, trained.tensors)


def _norm_entries(plan: FlatLayout, tensors: Num) -> Iterator[Entry]:
    """FSDP's clip_grad_norm_: a norm of each gradient, one after the other."""
    if plan.run.clipping:
        live = {i.name: 1 for i in plan.step_instants if i.instant.phase == OPTIMIZER}
        yield Entry("gradient norms", TEMP, sized(tensors * NORM_BYTES, 8), live, NORM_CODE)


GATHERS = re.compile(r"(^|\.)(forward\.root|gather\.[\w.]+|prefetch|gather|after)$")
ROOT_AGAIN = re.compile(r"(^|\.)loss\.backward(\.prefetch)?$")
IN_FLIGHT = 2  # torch 2.13 D/_limiter_utils.py _max_num_inflight_all_gathers


class FlatStreamWriter(StreamWriter):
    """Writes what any writer does, and which blocks are kept after their free.

    `limited`: `limit_all_gathers` is on; without it the host waits at the end of each phase only.
    Sharded gradients are freed by the next gather (torch 2.13 distributed/fsdp/_flat_param.py
    _reset_flat_param_grad_info_if_needed).
    """

    gradients_wait = True

    def __init__(self, ledger: Ledger, *, limited: bool) -> None:
        super().__init__(ledger)
        self.limited = limited
        self.frees: list[int] = []  # the kept tensors up to each free of a gathered parameter
        self.done = 0  # kept tensors that the host has waited for
        self.in_forward = self.root_gathered = False
        self.waits = 0  # gathers of this instant before which the host has not waited yet

    def begin(self, phase: Phase) -> None:
        """A phase begins."""
        self.in_forward = phase.kind == FORWARD

    def sign(self, phase: PhaseInstants, place: int) -> None:
        """No instant has an equal: when the host waits depends on all before."""

    def visit(self, name: str) -> None:
        """Go to an instant; the host waits before each of its gathers."""
        if ROOT_AGAIN.search(name) and not self.root_gathered:
            self._wait()  # backward asks for the root first, which is gathered already
        self.root_gathered = name.endswith("loss.backward.prefetch")
        self._keep_freed(self.waiting.get(name, ()))  # gradients that were copied
        self.waits = int(bool(GATHERS.search(name)))
        super().visit(name)
        while self.waits:
            self._wait_once()

    def keep(self, index: int, copies: int) -> None:
        """Allocate or free copies of an entry."""
        role = self.entries[index].role
        if role not in (GATHERED, RECORDED):
            super().keep(index, copies)
            return
        before = list(self.held.get(index, ()))
        if role == GATHERED and copies > len(before):
            self._wait_once()
        super().keep(index, copies)
        freed = [tensor for tensors in before[copies:] for tensor in tensors]
        if role == RECORDED or self.in_forward:
            self._keep_freed(freed)
        if freed and role == GATHERED:
            self.frees.append(len(self.stream.uses))

    def mark(self, phase: Phase) -> None:
        """Mark the end of a phase, where the host waits for the GPU."""
        super().mark(phase)
        self.done = len(self.stream.uses)

    def _keep_freed(self, tensors: Iterable[int]) -> None:
        self.stream.uses += [(tensor, -1, UNTIL_MARK) for tensor in tensors]

    def _wait_once(self) -> None:
        if self.waits:
            self.waits -= 1
            self._wait()

    def _wait(self) -> None:
        """Wait for the oldest free of a gathered parameter, where two are in flight."""
        if not self.limited or len(self.frees) < IN_FLIGHT:
            return
        passed, now = self.frees.pop(0), len(self.events)
        uses = self.stream.uses
        for number in range(self.done, passed):
            uses[number] = (uses[number][0], -1, now)
        self.done = max(self.done, passed)


def _walks(run: Run, setting: BlockSetting, stack: LayerGroups) -> StageWalks:
    """The walks of layers and head. Beside adapters, frozen weights of layers take gradients, too,
    because they are views of a flat parameter that does; those of the root do not.
    """
    taking = walk_stage(run, replace(setting, frozen=False), stack)
    if run.frozen:
        kept = (taking.first or taking.layers[0]).keeps_input
        named = named_until_return(run, setting, kept=kept)
        taking = replace(taking, head=head_walk(setting, run.arch, None, named))
    return replace(taking, gradients=FREE_TOGETHER)


def _until(plan: FlatLayout, instant: FsdpInstant) -> str:
    """Until the flat gradient is made; the root's is made last."""
    if instant.action != "layer":
        return instant.step.instant.moved("reduce.root").name
    after = "after" if plan.below == POST and instant.layer > 0 else "reduce"
    return f"{instant.step.name}.{after}"


def _writer(plan: FlatLayout) -> Callable[[Ledger], Writer] | None:
    """Where nothing is gathered, nothing says how far the host is ahead."""
    if nothing(plan.root.several):
        return None
    return partial(FlatStreamWriter, limited=bool(option(plan.run, "limit_all_gathers")))


VERSION_1 = FsdpVersion(states=state_entries, walks=_walks, until=_until, writer=_writer)
