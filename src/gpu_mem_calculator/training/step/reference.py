"""A frozen reference model beside the one that is trained: its weights, and its forward pass.

TRL's preference trainers compare the log-probabilities of the trained model with a reference's
(trl 1.16.0 trainer/dpo_trainer.py _compute_loss): the reference runs forward without autograd,
after the trained model's forward and before its backward, so all saved activations are alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import (
    ACT,
    AFTER_EMBEDDING,
    AFTER_MASKS,
    BEFORE_INPUT,
    PARAM,
    REFERENCE,
    RUNTIME,
    Entry,
    Instant,
)
from ...ledger.num import EMPTY, Bytes, larger, nothing, sized
from ...ledger.source import code
from ...ledger.units import GIB
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...pytorch.autograd.walk import BlockWalk
from ...pytorch.modelling.huggingface.head import head_walk
from ...pytorch.modelling.huggingface.liger import NO_LIGER
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...pytorch.replay.replays import replay
from ...pytorch.replay.stream import AllocationStream
from ...run.phases import FORWARD
from ...run.recompute import NONE
from ...run.run import COPY, PRECOMPUTED, Precision, Run
from .instants import Instants, StepInstant
from .layer_groups import LayerGroups
from .layer_walks import group_walk
from .loading import natural_key
from .model_inputs import input_entries, named_sizes
from .states import STARTUP_REFERENCE, STARTUPS, buffer_entry, parameter_entry
from .weights import base_bytes, base_tensors, tower_tensors
from .workspaces import run_cublas_bytes

FORWARD_CODE = code(
    "trl 1.16.0 trainer/dpo_trainer.py _compute_loss: the reference runs under torch.no_grad"
)
WARMUP_CODE = code(
    "trl 1.16.0 trainer/dpo_trainer.py: a second model of the same dtype; transformers 5.17.0 "
    "modeling_utils.py caching_allocator_warmup"
)
MOST_MISSING = 3 * GIB // 2  # caching_allocator_warmup allocates no less beyond what is unused
WORK = "reference"  # what runs at an instant of the reference's forward


def reference_entries(
    run: Run,
    precision: Precision,
    setting: BlockSetting,
    groups: LayerGroups,
    instants: Instants,
    head: BlockWalk,
) -> Iterator[Entry]:
    """The reference's weights, its forward pass, and what the trained model's head keeps then."""
    if run.reference == COPY:
        yield _weights_entry(run, precision, instants)
    events = no_grad_forward(run, reference_setting(run, setting), groups)
    live = {i.name: 1 for i in instants if i.work == WORK}
    if run.reference == PRECOMPUTED:
        live = {STARTUP_REFERENCE: 1}
        bytes_ = run_cublas_bytes(run)
        source = code("torch 2.11 ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
        yield Entry("cuBLAS workspace of the reference's forward", RUNTIME, bytes_, live, source)
    elif not run.unrolled:
        script = head.script
        kept = head.saved_bytes + script.sizes[script.exit]
        yield Entry("final norm and loss: kept for backward", ACT, kept, live, FORWARD_CODE)
    yield Entry(
        name="reference model: forward",
        kind=ACT,
        bytes=most_bytes(events),
        live=live,
        source=FORWARD_CODE,
        script=events if run.unrolled else None,
        role=REFERENCE,
    )


def reference_setting(run: Run, setting: BlockSetting) -> BlockSetting:
    """How the reference runs: without adapters. Of Liger's kernels a copy has the rotary one alone,
    which replaces a function of the module; the others replace methods of the trained model
    (liger-kernel 0.8.5 transformers/monkey_patch.py).
    """
    setting = replace(setting, adapter=None)
    if run.reference == COPY and setting.liger.rope:
        return replace(setting, liger=replace(NO_LIGER, rope=True))
    return setting


def _weights_entry(run: Run, precision: Precision, instants: Instants) -> Entry:
    """The weights of the copy, from its start-up on.

    On one GPU it is loaded with a device map, for which transformers allocates and frees all its
    bytes at once: the weights are then parts of one segment.
    """
    buffers = buffer_entry(run, instants)
    tower = list(tower_tensors(run, precision))

    def tensors() -> list[Bytes]:
        own = buffers.tensors() if buffers.tensors is not None else ()
        names = sorted(run.arch.weights(), key=lambda weight: natural_key(weight.name))
        loaded = [sized(weight.numel, precision.weights) for weight in names]
        return [*loaded, *tower, *own]

    size = base_bytes(run, precision) + buffers.bytes + sum(tower, EMPTY)
    entry = parameter_entry("reference model: parameters", size, instants, tensors=tensors)
    begun = STARTUPS[STARTUPS.index(STARTUP_REFERENCE) :]
    script = None
    if run.unrolled and int(run.mesh.dp) == 1 and run.parameters_given is None:
        script = _loaded_at_once(tensors(), _unused_bytes(run, precision))
    live = {**dict.fromkeys(begun, 1), **entry.live}
    return replace(entry, kind=PARAM, live=live, source=WARMUP_CODE, script=script)


def _loaded_at_once(sizes: Iterable[Bytes], unused: int) -> BlockEvents:
    """One allocation of all bytes, less what the allocator has already, which is freed, and then
    the tensors. `unused`: bytes that are reserved and not allocated.
    """
    each = [int(size) for size in sizes]
    total, recorder = sum(each), EventRecorder()
    whole = total - unused if total > 2 * unused else 0
    if not whole and total - unused > MOST_MISSING:
        whole = unused + 1
    recorder.over(recorder.work((sized(whole, 8),)))
    return recorder.forward_only([recorder.weight(sized(size, 8)) for size in each])


def _unused_bytes(run: Run, precision: Precision) -> int:
    """Bytes that the allocator has reserved beyond the trained model, which was moved from the host
    one weight at a time; one that was loaded with a device map fills its segment.
    """
    if run.options.get("init_device") != "cpu":
        return 0
    sizes = [int(size) for size in base_tensors(run, precision)]
    moved = replay(AllocationStream.of(sizes=sizes, events=range(len(sizes))))
    return moved.reserved_bytes - moved.allocated_bytes


class Whole(Struct, frozen=True):
    """Bytes of whole parameters that an engine gathers: the most at layers, and at the loss."""

    layers: Bytes = EMPTY
    loss: Bytes = EMPTY


NOTHING = Whole()


def no_grad_forward(
    run: Run, setting: BlockSetting, groups: LayerGroups, whole: Whole = NOTHING
) -> BlockEvents:
    """The events of a model's forward under torch.no_grad, from the embedding to the loss.

    A layer keeps nothing but the casts that autocast caches until forward ends. What the model's
    forward names (the embedding's output, masks, rotary tables) is freed after the final norm.
    """
    recorder = EventRecorder()
    shared = [] if nothing(whole.layers) else [recorder.weight(whole.layers)]
    inputs = _inputs(run, setting, groups)
    names = [recorder.make(size) for size in named_sizes(run, setting, kept=False)]
    before = [recorder.make(e.bytes) for e in inputs if e.role == BEFORE_INPUT]
    own_input = len(names) != 1 or run.arch.embedding_norm is not None
    row = sized(setting.tokens * setting.hidden, setting.bits)
    flow = recorder.make(row) if own_input else names[0]
    for tensor in before:
        recorder.free(tensor)
    for role in (AFTER_EMBEDDING, AFTER_MASKS):
        for entry in inputs:
            if entry.role == role:
                names += _made(recorder, entry)
    cached: list[int] = []
    for group in groups:
        once = group_walk(setting, replace(group, recompute=NONE), grad=True).once
        for _ in range(int(group.count)):
            ids = _play(recorder, once, (flow,), names)
            cached += [ids[tensor] for tensor in once.left]
            flow = ids[once.exit]
    recorder.over(shared)
    shared = [] if nothing(whole.loss) else [recorder.weight(whole.loss)]
    sizes = tuple(recorder.sizes[tensor] for tensor in names)
    head = head_walk(setting, run.arch, None, sizes).once
    ids = _play(recorder, head, (flow, *names), ())
    recorder.over((ids[head.exit], *(ids[tensor] for tensor in head.left), *cached, *shared))
    return replace(recorder.forward_only(()), entry_saved_before=True)


def _inputs(run: Run, setting: BlockSetting, groups: LayerGroups) -> list[Entry]:
    """What the model's forward makes once for all its layers."""
    running = StepInstant(
        instant=Instant(name=FORWARD, phase=FORWARD),
        saved=(),
        grads=(),
        work="layer",
        inside_forward=True,
    )
    alone = replace(run, unrolled=setting.only_ints)
    return list(input_entries(alone, setting, groups, (running,), kept=False))


def _made(recorder: EventRecorder, entry: Entry) -> list[int]:
    """Record how an entry is made; the tensors that stay."""
    if isinstance(entry.script, BlockEvents):
        ids = _play(recorder, entry.script, (), ())
        return [ids[tensor] for tensor in entry.script.left]
    sizes = entry.tensors() if entry.tensors is not None else (entry.bytes,)
    return [recorder.make(size) for size in sizes for _ in range(int(entry.live[FORWARD]))]


def _play(
    recorder: EventRecorder, block: BlockEvents, given: Iterable[int], stays: Iterable[int]
) -> list[int]:
    """Record a block's forward events; the number of each of its tensors. `given`: those that
    exist before it, its input first; `stays`: what it does not free.
    """
    ids = list(given)
    ids += [recorder.number(size) for size in block.sizes[len(ids) :]]
    kept = set(stays)
    for event in block.forward:
        if event >= 0:
            recorder.events.append(ids[event])
        elif ids[~event] not in kept:
            recorder.events.append(~ids[~event])
    return ids


def most_bytes(events: BlockEvents) -> Bytes:
    """The most bytes alive during events."""
    total, most = EMPTY, EMPTY
    for event in events.forward:
        total = total + (events.sizes[event] if event >= 0 else -events.sizes[~event])
        most = larger(most, total)
    return most
