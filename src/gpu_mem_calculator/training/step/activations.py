"""What Hugging Face models keep for backward, and what each block needs while it runs, as entries.

Engines that run transformers share this: they differ in where parameters and gradients are. The
entries of what stays against the rule come last: inputs that a checkpoint keeps in host RAM or that
int8 matmuls hold, and weights that autocast has cast and a KV cache, which stay while forward runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...ledger.ledger import (
    ACT,
    CACHE,
    CHECKPOINTED,
    CPU,
    FIRST,
    GRAD,
    IN_FLIGHT,
    INPUTS_IN_FLIGHT,
    TEMP,
    Entry,
)
from ...ledger.num import EMPTY, Num, larger, nothing, power_of_two, smaller
from ...ledger.source import Source, code
from ...pytorch.autograd.events import BlockEvents
from ...pytorch.autograd.peak import PeakParts
from ...pytorch.autograd.walk import BlockWalk
from ...pytorch.modelling.huggingface.flash import has_flash, prefers_cudnn
from ...pytorch.modelling.huggingface.head import head_walk
from ...pytorch.modelling.huggingface.liger import liger_kernels
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...pytorch.modelling.others.implementations import implementation_quirks
from ...run.phases import BACKWARD, FORWARD
from ...run.recompute import BY_OPERATION, FULL
from ...run.run import Precision, Run
from ..losses import TRANSFORMERS, kernel
from .embedding import embedding_entries, embedding_events
from .instants import WHOLE_PASS, Instants, StepInstant, others_wait
from .layer_groups import LayerGroup, LayerGroups
from .layer_walks import OPERATION_CODE, LayerSources, group_walk, run_sources
from .loading import quantized_fields
from .model_inputs import input_entries, masks_at_final_norm, named_until_return

# A weight's gradient that backward has made is alive until the step (later micro-batches add theirs
# to it), is added to a buffer and freed at once, or is freed together with the block's others.
KEEP_FOR_STEP, FREE_AT_ONCE, FREE_TOGETHER = "stay", "go", "unit"


class StageWalks(Struct, frozen=True):
    """The walks of one stage.

    - `layers`: one for each layer group; `head`: the head's.
    - `first`: the model's first layer where its input takes no gradient (a frozen embedding).
    - `gradients`: when the weights' gradients are freed.
    - `embedding`: the events of its backward in an unrolled run.
    """

    layers: tuple[BlockWalk, ...]
    head: BlockWalk
    first: BlockWalk | None = None
    gradients: str = KEEP_FOR_STEP
    embedding: BlockEvents | None = None
    sources: LayerSources = LayerSources()

    def at(self, index: int, block: LayerGroup, instant: StepInstant) -> BlockWalk:
        """The walk of the layer of group `index` that runs at an instant."""
        alone = type(block.count) is int and block.count == 1
        ends = instant.instant.layer == FIRST or alone
        return self.first if index == 0 and ends and self.first else self.layers[index]

    def goes(self, instant: StepInstant) -> bool:
        """Whether a gradient made at this instant is freed as soon as it is added to another."""
        return self.gradients == FREE_AT_ONCE or (self.gradients == KEEP_FOR_STEP and instant.later)

    def plays_embedding(self, instant: StepInstant) -> bool:
        """Whether the embedding runs backward at this instant, and has events for it."""
        has_events = self.gradients != FREE_AT_ONCE and self.embedding is not None
        return has_events and instant.work == "embedding"


def setting(run: Run, precision: Precision) -> BlockSetting:
    """How one rank runs the blocks of a run: sizes, bits and kernels.

    Where the rest is upcast (PEFT 0.21.2 prepare_model_for_kbit_training), the embedding returns
    fp32, and quantized projections the dtype of their input.
    """
    autocast = precision.autocast or run.autocast
    upcast = run.quantization is not None and run.upcast_unquantized
    bits, weights = (32, 32) if upcast else (precision.compute, precision.weights)
    matmul = 16 if autocast else bits
    quirks, flash = implementation_quirks(run.arch), has_flash(run.compute_capability)
    return BlockSetting(
        batch=run.batch,
        seq=run.seq,
        hidden=run.arch.hidden,
        bits=bits,
        matmul_bits=matmul,
        weight_bits=weights,
        autocast=autocast,
        autocast_cache=run.autocast_cache,
        half=run.precision.startswith("fp16"),
        attention=run.attention,
        cudnn=prefers_cudnn(run.compute_capability) or (quirks.cudnn_first and flash),
        flash=flash,
        frozen=run.frozen,
        adapter=run.adapter,
        **quantized_fields(run),
        liger=liger_kernels(run.arch.family, run.liger),
        multiprocessors=run.multiprocessors if run.liger else 132,
        loss=kernel(run, TRANSFORMERS),
        loss_chunk=run.loss_chunk,
        labelled=run.labelled,
        use_cache=run.use_cache,
        smoothed=run.label_smoothing > 0,
        compiled=bool(run.compile),
        quirks=quirks,
    )


def walks(run: Run, setting: BlockSetting, groups: LayerGroups) -> StageWalks:
    """The walks of each distinct layer and of the head; those of plain sizes are cached."""
    if run.record is not None:
        from .recorded import RECORDED, before_events, part_walk

        record = run.record
        parts = (part_walk(record.layers[g.layer.part], g.recompute == FULL) for g in groups)
        embedding = before_events(record) if run.unrolled else None
        return StageWalks(
            tuple(parts),
            part_walk(record.after, False),
            embedding=embedding,
            sources=LayerSources(RECORDED, RECORDED),
        )
    layers = tuple(group_walk(setting, g, grad=True) for g in groups)
    first = None
    if run.frozen and not groups[0].checkpointed:
        first = group_walk(setting, groups[0], grad=False)
    embedding = embedding_events(run, setting) if run.unrolled and not run.frozen else None
    named = named_until_return(run, setting, kept=(first or layers[0]).keeps_input)
    head = head_walk(setting, run.arch, None, named)
    return StageWalks(layers, head, first, embedding=embedding, sources=run_sources(run))


def activation_entries(
    run: Run, setting: BlockSetting, groups: LayerGroups, instants: Instants, walks: StageWalks
) -> Iterator[Entry]:
    """Saved activations, what layers and head need while they run, tables and masks."""
    yield from block_entries(run, groups, instants, walks)
    if setting.compiled:
        from .compiled import compiled_entries

        yield from compiled_entries(run, setting, instants)
    if run.record is not None:
        from ...run.record import under_init
        from .recorded import bias_entries, record_entries, table_entries

        recomputes = any(g.recompute == FULL for g in groups)
        if not under_init(run.options):
            yield from bias_entries(run.record, instants, recomputes=recomputes)
        yield from record_entries(run.record, instants)
        if walks.embedding is None or walks.gradients == FREE_AT_ONCE:
            yield from table_entries(run.record, instants)
        return
    kept = (walks.first or walks.layers[0]).keeps_input
    inputs = tuple(input_entries(run, setting, groups, instants, kept=kept))
    yield from inputs
    if not run.unrolled:
        yield from masks_at_final_norm(run, inputs, instants, walks.head)
        yield from cached_cast_entries(groups, instants, [walk.once for walk in walks.layers])
        yield from unused_cache_entries(groups, instants, [walk.script for walk in walks.layers])
    if walks.embedding is None or walks.gradients == FREE_AT_ONCE:
        yield from embedding_entries(run, setting, instants, fresh=walks.gradients == FREE_TOGETHER)


def block_entries(
    run: Run, groups: LayerGroups, instants: Instants, walks: StageWalks
) -> Iterator[Entry]:
    """What layers and head save and need while they run, if no events have it (unrolled runs)."""
    source, checkpoint = walks.sources.layer, walks.sources.checkpoint
    others = others_wait(tuple(group.count for group in groups), instants) if run.unrolled else ()
    for i, group in enumerate(groups if run.unrolled else ()):
        yield from int8_inputs(i, group, walks.layers[i], instants)
        yield from waiting_entries(i, group, walks.layers[i], others, source, checkpoint)
    for i, group in enumerate(() if run.unrolled else groups):
        first = walks.first if i == 0 else None
        yield from _saved(i, group, walks.layers[i], instants, first, walks.sources)
        yield from int8_inputs(i, group, walks.layers[i], instants)
        for instant in instants:
            if instant.work == "layer" and instant.stretch == i:
                peak = _layer_peak(group, walks.at(i, group, instant), walks, instant)
                yield from _working(f"{group.title}: at work", peak, instant, source)
    for instant in () if run.unrolled else instants:
        if instant.work == "head":
            peak = _head_peak(walks, instant)
            yield from _working("final norm, logits and loss", peak, instant, walks.sources.head)


def _saved(
    index: int,
    group: LayerGroup,
    walk: BlockWalk,
    instants: Instants,
    first: BlockWalk | None,
    sources: LayerSources,
) -> Iterator[Entry]:
    """What one layer keeps from forward to backward, times the layers that wait for backward.

    The model's first layer is among them whenever there are any, and has another walk
    (`first`) where its input takes no gradient. Under a checkpoint its input is made to take one
    (PEFT 0.21.2 peft_model.py _prepare_model_for_gradient_checkpointing).
    """
    full = group.recompute == FULL
    one = 0 if first is None else 1
    name = f"{group.title}: {'checkpointed inputs' if full else 'kept for backward'}"
    if group.offloaded:
        live = {i.name: i.saved[index] for i in instants}
        yield host_inputs(name, walk, live)
        return
    yield Entry(
        name=name,
        kind=ACT,
        bytes=walk.input_bytes if full else walk.saved_bytes,
        live={i.name: larger(i.saved[index] - one, 0) for i in instants},
        source=_source(group, sources),
        parts=() if full else walk.saved,
        role=CHECKPOINTED if full else "",
    )
    if first is not None:
        yield Entry(
            name=f"{group.title}: kept for backward by the first, whose input takes no gradient",
            kind=ACT,
            bytes=first.saved_bytes,
            source=sources.layer,
            parts=first.saved,
            live={i.name: smaller(i.saved[index], 1) for i in instants},
        )


def _source(group: LayerGroup, sources: LayerSources) -> Source:
    """Where it is written what a layer of a group keeps."""
    if group.recompute == BY_OPERATION:
        return OPERATION_CODE
    return sources.checkpoint if group.recompute == FULL else sources.layer


def _layer_peak(
    group: LayerGroup, walk: BlockWalk, walks: StageWalks, instant: StepInstant
) -> PeakParts:
    """The peak of a layer that runs; a checkpointed one is recomputed before its backward.

    A reentrant checkpoint holds the recomputed output until its backward ends
    (torch 2.11 utils/checkpoint.py CheckpointFunction.backward).
    """
    if instant.instant.phase == FORWARD:
        return walk.transient if group.recompute == FULL else walk.forward
    back = walk.later if walks.goes(instant) else walk.backward
    if group.recompute != FULL:
        return back
    gradients = walk.input_bytes + walk.script.before_recompute()  # the output's, and later ones
    again = PeakParts(walk.forward.act + gradients, EMPTY, walk.forward.temp)
    output = walk.input_bytes if group.reentrant else EMPTY
    entry = EMPTY if walk.holds_input else walk.input_bytes
    return again.or_higher(back.act + entry + output, back.grad, back.temp)


def _head_peak(walks: StageWalks, instant: StepInstant) -> PeakParts:
    if instant.instant.phase == FORWARD:
        return walks.head.forward
    return walks.head.later if walks.goes(instant) else walks.head.backward


def _working(name: str, peak: PeakParts, instant: StepInstant, source: Source) -> Iterator[Entry]:
    """Entries of a block's peak at one instant: activations, weight gradients, workspace."""
    parts = (
        (name, ACT, peak.act),
        (f"{name}, weight gradients", GRAD, peak.grad),
        (f"{name}, kernel workspace", TEMP, peak.temp),
    )
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=kind, bytes=size, live={instant.name: 1}, source=source)


def cached_cast_entries(
    groups: LayerGroups, instants: Instants, forwards: Sequence[BlockEvents]
) -> Iterator[Entry]:
    """16-bit copies of the weights of layers that have run, which autocast keeps until forward
    ends. Without recompute the layers keep them for backward, and they are counted there.

    `forwards`: the events of each group's layer in forward.
    """
    for i, (group, once) in enumerate(zip(groups, forwards, strict=True)):
        if group.checkpointed and once.left:
            yield Entry(
                name=f"{group.title}: 16-bit weights cached by autocast",
                kind=TEMP,
                bytes=sum((once.sizes[tensor] for tensor in once.left), EMPTY),
                live={at.name: at.saved[i] for at in instants if at.inside_forward},
                source=code("torch 2.11 autocast_mode.cpp cached_cast: until autocast exits"),
            )


def unused_cache_entries(
    groups: LayerGroups, instants: Instants, scripts: Sequence[BlockEvents]
) -> Iterator[Entry]:
    """Keys and values of layers that have run, which the model's output names until forward ends.

    `scripts`: the events of each group's layer.
    """
    for i, (group, script) in enumerate(zip(groups, scripts, strict=True)):
        if script.until_forward_ends and not group.checkpointed:
            yield Entry(
                name=f"{group.title}: KV cache that training does not read",
                kind=CACHE,
                bytes=sum((script.sizes[tensor] for tensor in script.until_forward_ends), EMPTY),
                live={at.name: at.saved[i] for at in instants if at.inside_forward},
                source=code("transformers 5.17.0 cache_utils.py DynamicLayer.update: torch.cat"),
            )


def int8_inputs(
    index: int, group: LayerGroup, walk: BlockWalk, instants: Instants
) -> Iterator[Entry]:
    """The inputs of a group's int8 projections, held by the graph.

    After a layer's backward it stays until all of backward ends. A checkpoint that is not
    reentrant keeps it from forward on; a reentrant one runs forward without a graph.
    """
    if nothing(walk.pinned):
        return
    full = group.recompute == FULL
    live: dict[str, Num] = {}
    for i in instants:
        running = 1 if i.work == "layer" and i.stretch == index and not full else 0
        finished = group.count - i.saved[index] - running
        if i.instant.phase == BACKWARD and not (full and group.reentrant):
            live[i.name] = finished
        if full and not group.reentrant:
            live[i.name] = live.get(i.name, 0) + i.saved[index]
    yield Entry(
        name=f"{group.title}: inputs of int8 projections, held by the graph",
        kind=ACT,
        bytes=walk.pinned,
        live=live,
        source=code("bitsandbytes 0.50.2 autograd/_functions.py MatMul8bitLt: ctx.tensors"),
    )


SAVE_ON_CPU = code("torch 2.11 autograd/graph.py save_on_cpu: one pinned tensor for each input")


def host_inputs(name: str, walk: BlockWalk, live: Mapping[str, Num]) -> Entry:
    """The inputs of layers, each rounded to a power of two by torch's allocator of pinned memory
    (ATen/core/CachingHostAllocator.h).
    """
    size = power_of_two(walk.input_bytes)
    return Entry(f"{name} on the host", ACT, size, live, SAVE_ON_CPU, place=CPU)


def waiting_entries(
    index: int,
    group: LayerGroup,
    walk: BlockWalk,
    instants: Instants,
    layer_source: Source,
    checkpoint_source: Source,
) -> Iterator[Entry]:
    """What other micro-batches in flight keep, in addition to the one whose blocks have events.

    `index` is the layer group's; `instants` those at which others may keep something; the sources
    are those of what a layer and of what a checkpointed layer keeps.
    """

    live: dict[str, Num] = {}
    for i in instants:
        copies = i.saved[index]
        done = i.work in WHOLE_PASS or (i.work == "layer" and index < i.stretch)
        if copies > 1 or (copies and not (group.count and done)):
            live[i.name] = copies - bool(group.count and done)
    if not live:
        return
    full = group.recompute == FULL
    sizes = (walk.input_bytes,) if full else tuple(size for _, size in walk.saved)
    yield Entry(
        name=f"{group.title}: kept by micro-batches in flight",
        kind=ACT,
        bytes=sum(sizes, EMPTY),
        live=live,
        source=checkpoint_source if full else layer_source,
        tensors=lambda: sizes,
        role=INPUTS_IN_FLIGHT if full else IN_FLIGHT,
    )
