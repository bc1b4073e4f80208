"""What Megatron's layers keep and need for a moment, as ledger entries of one pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import ACT, COMM, GRAD, RUNTIME, TEMP, Entry
from ...ledger.num import Num, holds, larger, nothing
from ...ledger.source import Source, code
from ...model.blocks import Moe
from ..pipeline import Stage
from ..run import Run
from ..stack import Block
from ..timeline import BACKWARD, FORWARD, STARTUP, Beat
from ..walk import Moment, Walk
from .cuts import embedding_shard, local_vocab, matrices
from .head import head_walk
from .layer import layer_walk
from .ops import Setting
from .options import fused, option, setting

LAYER_CODE = code("megatron-core 0.19.2 transformer layer, walked with autograd's saving rules")
LOSS_CODE = code("megatron-core 0.19.2 tensor_parallel/cross_entropy.py:25-181")
CHECKPOINT_CODE = code("megatron-core 0.19.2 tensor_parallel/random.py: a layer's input is kept")
EMBEDDING_CODE = code("megatron-core 0.19.2 tensor_parallel/layers.py:339 VocabParallelEmbedding")
PIPELINE_CODE = code("megatron-core 0.19.2 pipeline_parallel/schedules.py:2300-2440")


def in_step(beats: tuple[Beat, ...]) -> dict[str, Num]:
    """Alive while micro-batches run."""
    return {b.name: 1 for b in beats if b.work}


def activation_entries(run: Run, stage: Stage, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    """Layers, head, embedding, what micro-batches in flight hold, buffers that stay."""
    how = setting(run, selective=False)
    seen: dict[tuple[int, bool], Walk] = {}
    for index, block in enumerate(stage.blocks):
        selective = block.recompute == "selective"
        key = (id(block.layer), selective)
        if key not in seen:
            seen[key] = layer_walk(setting(run, selective=selective), block.layer)
        yield _kept(index, block, seen[key], beats)
        if block.recompute == "full" and isinstance(block.layer.mlp, Moe):
            yield _dispatched(index, block, seen[key], beats)
        for beat in beats:
            if beat.work == "layer" and beat.stretch == index:
                moment = _layer_moment(block, seen[key], beat)
                yield from _working(f"{block.title}: at work", moment, beat, LAYER_CODE)
    yield from _head(run, how, beats)
    yield from _embedding(run, how, stage, beats)
    yield from _micro_batches(run, how, stage, beats)
    yield from _buffers(run, how, stage, beats)


def _kept(index: int, block: Block, walk: Walk, beats: tuple[Beat, ...]) -> Entry:
    full = block.recompute == "full"
    return Entry(
        name=f"{block.title}: {'checkpointed inputs' if full else 'kept for backward'}",
        kind=ACT,
        bytes=walk.input_bytes if full else walk.saved_bytes,
        live={b.name: b.saved[index] for b in beats},
        source=CHECKPOINT_CODE if full else LAYER_CODE,
        parts=() if full else walk.saved,
    )


def _dispatched(index: int, block: Block, walk: Walk, beats: tuple[Beat, ...]) -> Entry:
    """What a recomputed layer with experts leaves behind until it runs again.

    Its dispatcher names the router's scores, and with them the graph that the checkpoint made:
    the layer's input as a leaf of it, and the gradient of that.
    """
    return Entry(
        name=f"{block.title}: input and its gradient, held by the dispatcher", kind=ACT,
        bytes=2 * walk.input_bytes, live={b.name: b.grads[index] for b in beats},
        source=code("megatron-core 0.19.2 transformer/moe/token_dispatcher.py: self.probs"),
    )  # fmt: skip


def _layer_moment(block: Block, walk: Walk, beat: Beat) -> Moment:
    """The layer at work. A checkpoint runs it again, and holds the output that this makes and
    the gradient it was given until it is done (tensor_parallel/random.py CheckpointFunction).
    """
    full = block.recompute == "full"
    if beat.instant.phase == FORWARD:
        return walk.transient if full else walk.forward
    if not full:
        return walk.later
    again, back = walk.forward, walk.later
    rerun = Moment(again.act + walk.input_bytes, 0, again.temp)
    return rerun.or_higher(back.act + 2 * walk.input_bytes, back.grad, back.temp)


def _working(name: str, moment: Moment, beat: Beat, source: Source) -> Iterator[Entry]:
    parts = ((name, ACT, moment.act), (f"{name}, weight gradients", GRAD, moment.grad),
             (f"{name}, kernel workspace", TEMP, moment.temp))  # fmt: skip
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=kind, bytes=size, live={beat.name: 1}, source=source)


def _head(run: Run, how: Setting, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    walk = head_walk(how, run.arch, local_vocab(run))
    for beat in beats:
        if beat.work == "head":
            moment = walk.forward if beat.instant.phase == FORWARD else walk.later
            yield from _working("final norm, logits and loss", moment, beat, LOSS_CODE)


def _embedding(run: Run, how: Setting, stage: Stage, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    """Ids with a mask where the table is cut, a dropout mask; a dense gradient in backward."""
    live = dict.fromkeys(in_step(beats), stage.flight * stage.first)
    masked = holds(run.mesh.tp > 1) * 9 * how.tokens
    yield Entry(name="embedding: masked token ids", kind=ACT, bytes=masked, live=live,
                source=EMBEDDING_CODE)  # fmt: skip
    if run.arch.embedding_dropout:
        yield Entry(
            name="embedding: dropout mask", kind=ACT, bytes=how.local_tokens * how.hidden,
            live=live, source=code("torch 2.11 native_dropout keeps a boolean mask"),
        )  # fmt: skip
    now = {b.name: 1 for b in beats if b.work == "embedding"}
    output = how.local_tokens * how.hidden * how.bits // 8 + how.full_bytes(how.hidden)
    yield Entry(name="embedding: gradient of its output", kind=ACT, bytes=output, live=now,
                source=EMBEDDING_CODE)  # fmt: skip
    yield Entry(
        name="embedding: gradient being made", kind=GRAD, live=now, source=EMBEDDING_CODE,
        bytes=embedding_shard(run).dense * how.bits // 8,
    )  # fmt: skip


def _micro_batches(
    run: Run, how: Setting, stage: Stage, beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """Ids, labels and mask of each micro-batch in flight, and tensors between stages."""
    names = in_step(beats)
    flight = dict.fromkeys(names, stage.flight)
    yield Entry(name="token ids and positions", kind=ACT, bytes=16 * how.tokens, live=flight,
                source=code("Megatron-LM core_r0.19.0 pretrain_gpt.py get_batch"))  # fmt: skip
    if not fused(run):
        yield Entry(
            name="attention mask", kind=ACT, bytes=run.seq * run.seq, live=flight,
            source=code("megatron-core 0.19.2 fusions/fused_softmax.py: boolean [1, 1, s, s]"),
        )  # fmt: skip
    if isinstance(run.mesh.pp, int) and run.mesh.pp == 1:
        return
    yield from _between_stages(run, how, stage, beats)


def _between_stages(
    run: Run, how: Setting, stage: Stage, beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """Tensors that stages send each other, one stream of hidden states each.

    With interleaving the first and the last stage have neighbours on both sides, too; only the
    chunk with the loss passes nothing on.
    """
    names = in_step(beats)
    stream = how.local_tokens * how.hidden * how.bits // 8 * holds(run.mesh.pp > 1)
    woven = holds(run.virtual_stages > 1)
    steady = holds(run.micro_batches * run.virtual_stages > stage.flight)
    alone = {b.name: stage.last * (1 if b.work == "head" else 1 - woven * steady) for b in beats}
    if not option(run, "deallocate_pipeline_outputs"):
        yield Entry(
            name="stage outputs", kind=COMM, bytes=stream, source=PIPELINE_CODE,
            live={name: stage.flight - alone[name] for name in names},
        )  # fmt: skip
    yield Entry(
        name="gradient received from the next stage", kind=COMM, bytes=stream,
        live={b.name: (1 - alone[b.name]) * _apart(stage, b) for b in beats
              if b.work and b.instant.phase == BACKWARD},
        source=PIPELINE_CODE,
    )  # fmt: skip
    before = larger(1 - stage.first, woven)
    yield Entry(
        name="gradient sent to the stage before", kind=COMM, bytes=stream,
        live=dict.fromkeys(names, before * steady), source=PIPELINE_CODE,
    )  # fmt: skip
    yield Entry(
        name="last inputs of idle chunks, and their gradients", kind=COMM, bytes=2 * stream,
        live={b.name: idle_chunks(run) for b in beats if b.work == "layer"},
        source=code("megatron-core 0.19.2 transformer/transformer_block.py set_input_tensor"),
    )  # fmt: skip


def _apart(stage: Stage, beat: Beat) -> Num:
    """0 where the gradient from the next stage is the one that a checkpoint was given."""
    if beat.work != "layer" or stage.blocks[beat.stretch].recompute != "full":
        return 1
    if beat.stretch < len(stage.blocks) - 1:
        return 1
    return 0 if beat.name.endswith(".last") else holds(stage.working[beat.stretch] > 1)


def idle_chunks(run: Run) -> Num:
    """Chunks of an interleaved stage that wait for their next group, when they are most.

    A chunk's block names its last input until it gets another one. Forward is ahead of backward
    by (chunks - 1) × pp + 2 (pp - stage - 1) passes. Once backward has done j chunks of a group,
    forward has begun j + s of the next one, s = (2 (pp - stage - 1) + 1) // pp; the chunks
    that have neither are min(j, chunks - j - s).
    """
    pp = run.mesh.pp
    ahead = (2 * (pp - run.stage - 1) + 1) // pp
    most = larger(run.virtual_stages - ahead, 0) // 2
    return most * holds(run.virtual_stages > 1) * holds(run.micro_batches > pp)


def _buffers(run: Run, how: Setting, stage: Stage, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    """Made in the first step and never freed."""
    live = {b.name: 1 for b in beats if b.instant.phase != STARTUP}
    gathered = how.full_bytes(how.hidden)
    if fused(run):
        shared = gathered * stage.last
    else:
        heads = max(getattr(b.layer.mixer, "heads", 0) for b in stage.blocks) // how.tp
        shared = larger(how.batch * heads * how.seq * how.seq * how.bits // 8, gathered)
    yield Entry(
        name="global memory buffer", kind=COMM, bytes=shared, live=live,
        source=code("megatron-core 0.19.2 utils.py GlobalMemoryBuffer: scores, gathered inputs"),
    )  # fmt: skip
    rotary = max(getattr(b.layer.mixer, "rotary_dim", 0)
                 or getattr(b.layer.mixer, "rope_dim", 0) for b in stage.blocks)  # fmt: skip
    yield Entry(
        name="rotary frequencies", kind=RUNTIME, bytes=4 * run.seq * rotary, live=live,
        source=code("megatron-core 0.19.2 rotary_pos_embedding.py:177: cached in fp32"),
    )  # fmt: skip
    if how.fused_weight_gradients:
        yield Entry(
            name="dummy weight gradients", kind=GRAD, bytes=_dummies(run, how, stage), live=live,
            source=code("Transformer Engine 2.18 module/base.py:110: one a shape, for ever"),
        )  # fmt: skip


def _dummies(run: Run, how: Setting, stage: Stage) -> Num:
    """One 16-bit tensor for each distinct weight shape that gradient fusion writes past."""
    sizes: dict[tuple[int, ...], Num] = {}
    for block, held in zip(stage.blocks, stage.held, strict=True):
        for shape, size, _ in matrices(run, block.layer):
            sizes[shape] = larger(sizes.get(shape, 0), size * holds(held > 0))
    total: Num = 0
    for size in sizes.values():
        total = total + size
    total = total + stage.last * local_vocab(run) * how.hidden
    return total * how.bits // 8
