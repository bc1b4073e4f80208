"""What Hugging Face models keep and need for a moment, as ledger entries.

One set of entries for every engine that runs the transformers code: one GPU, DDP, FSDP and
DeepSpeed differ in where parameters and gradients are, not in what a layer keeps.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..autograd.events import BlockEvents
from ..autograd.peak import PeakParts
from ..autograd.walk import HOOKS, REENTRANT, BlockWalk
from ..ledger.ledger import ACT, CHECKPOINTED, FIRST, GRAD, TEMP, Entry
from ..ledger.num import Num, larger, nothing, smaller
from ..ledger.remember import remembered
from ..ledger.source import Source, code
from ..model.arch import Layer
from ..modelling.huggingface.head import head_walk
from ..modelling.huggingface.layer import layer_walk
from ..modelling.huggingface.quirks import family_quirks
from ..modelling.huggingface.setting import BlockSetting
from ..run.phases import BACKWARD, FORWARD
from ..run.record import under_init
from ..run.run import Precision, Run
from .instants import StepInstant
from .layer_groups import LayerGroup
from .model_inputs import embedding_entries, embedding_script, input_entries
from .pipeline import waiting_entries
from .recorded import RECORDED, bias_entries, part_walk, record_entries, table_entries, table_script

LAYER_CODE = code("transformers 5.17.0 modeling code, walked with autograd's saving rules")
LOSS_CODE = code("transformers 5.17.0 loss/loss_utils.py:51 ForCausalLMLoss")
CHECKPOINT_CODE = code("torch 2.11 utils/checkpoint.py: a checkpoint keeps the layer's input")


# What becomes of a weight's gradient that backward has made: it stays for the step, and later
# micro-batches add theirs to it; it goes into a buffer at once; or all of a block's go together.
STAY, GO, UNIT = "stay", "go", "unit"


class LayerSources(Struct, frozen=True):
    """Where it is written what a layer does, the head, and a checkpoint around a layer."""

    layer: Source = LAYER_CODE
    head: Source = LOSS_CODE
    checkpoint: Source = CHECKPOINT_CODE


class StageWalks(Struct, frozen=True):
    """The walks of one stage: one for each stretch, and the head's.

    `first` is the model's first layer where its input takes no gradient: a frozen embedding.
    `gradients` says what becomes of the weights' gradients: STAY, GO or UNIT. `embedding` is the
    script of its backward in an unrolled run.
    """

    layers: tuple[BlockWalk, ...]
    head: BlockWalk
    first: BlockWalk | None = None
    gradients: str = STAY
    embedding: BlockEvents | None = None
    sources: LayerSources = LayerSources()

    def at(self, index: int, block: LayerGroup, beat: StepInstant) -> BlockWalk:
        """The walk of the layer that a beat is about: the first of all may be another."""
        alone = type(block.count) is int and block.count == 1
        ends = beat.instant.layer == FIRST or alone
        return self.first if index == 0 and ends and self.first else self.layers[index]

    def goes(self, beat: StepInstant) -> bool:
        """Whether a gradient that this beat makes is gone as soon as it is added."""
        return self.gradients == GO or (self.gradients == STAY and beat.later)

    def plays_embedding(self, beat: StepInstant) -> bool:
        """Whether the embedding's backward is played as a script."""
        played = self.gradients != GO and self.embedding is not None
        return played and beat.work == "embedding"


def setting(run: Run, precision: Precision) -> BlockSetting:
    """How the run's blocks are executed on one rank.

    Where everything that is not quantized is upcast (PEFT 0.21.2 utils/other.py
    prepare_model_for_kbit_training), the embedding gives fp32, and quantized projections give back
    the dtype they get: the stream between matmuls is fp32.
    """
    autocast = precision.autocast or run.autocast
    upcast = run.quantization is not None and run.upcast_unquantized
    bits, weights = (32, 32) if upcast else (precision.compute, precision.weights)
    matmul = 16 if autocast else bits
    return BlockSetting(
        batch=run.batch,
        seq=run.seq,
        hidden=run.arch.hidden,
        bits=bits,
        matmul_bits=matmul,
        weight_bits=weights,
        autocast=autocast,
        half=run.precision.startswith("fp16"),
        attention=run.attention,
        cudnn=run.compute_capability in ("9.0", "10.0"),
        frozen=run.frozen,
        adapter=run.adapter,
        quantization=run.quantization,
        quirks=family_quirks(run.arch.family),
    )


def walks(run: Run, how: BlockSetting, blocks: tuple[LayerGroup, ...]) -> StageWalks:
    """Walk every distinct layer, and the head. Stages and what-ifs share walks of plain sizes."""
    if run.record is not None:
        record = run.record
        own = (part_walk(record.layers[b.layer.part], b.recompute == "full") for b in blocks)
        table = table_script(record) if run.unrolled else None
        return StageWalks(
            tuple(own),
            part_walk(record.after, False),
            embedding=table,
            sources=LayerSources(RECORDED, RECORDED),
        )
    layers = tuple(_walked(how, b.layer, b.window is not None, _policy(b), True) for b in blocks)
    first = None
    if run.frozen and blocks[0].recompute != "full":
        block = blocks[0]
        first = _walked(how, block.layer, block.window is not None, _policy(block), False)
    table = embedding_script(run, how) if run.unrolled and not run.frozen else None
    return StageWalks(layers, head_walk(how, run.arch), first, embedding=table)


def _policy(block: LayerGroup) -> str:
    """What is made again in backward: "selective" is core attention, HOOKS and REENTRANT all."""
    if block.recompute != "full":
        return block.recompute
    return REENTRANT if block.reentrant else HOOKS


@remembered(256)
def _walked(how: BlockSetting, layer: Layer, masked: bool, policy: str, grad: bool) -> BlockWalk:
    whole = policy if policy in (HOOKS, REENTRANT) else ""
    core = policy == "selective"
    return layer_walk(
        how, layer, masked=masked, recompute_core=core, grad=grad, checkpoint=whole
    )  # fmt: skip


def activation_entries(
    run: Run,
    how: BlockSetting,
    blocks: tuple[LayerGroup, ...],
    beats: tuple[StepInstant, ...],
    done: StageWalks,
) -> Iterator[Entry]:
    """Kept activations, the working sets of layers and head, tables and masks."""
    yield from block_entries(run, blocks, beats, done)
    if run.record is not None:
        again = any(b.recompute == "full" for b in blocks)
        if not under_init(run.options):
            yield from bias_entries(run.record, beats, again=again)
        yield from record_entries(run.record, beats)
        if done.embedding is None or done.gradients == GO:
            yield from table_entries(run.record, beats)
        return
    yield from input_entries(run, how, blocks, beats)
    if done.embedding is None or done.gradients == GO:
        yield from embedding_entries(run, how, beats, fresh=done.gradients == UNIT)


def block_entries(
    run: Run,
    blocks: tuple[LayerGroup, ...],
    beats: tuple[StepInstant, ...],
    done: StageWalks,
) -> Iterator[Entry]:
    """What layers and head keep and need.

    In an unrolled run layers and head play scripts instead, and what they keep and need is in
    those.
    """
    source, checkpoint = done.sources.layer, done.sources.checkpoint
    for i, block in enumerate(blocks if run.unrolled else ()):
        yield from _pinned(i, block, done.layers[i], beats)
        yield from waiting_entries(i, block, done.layers[i], beats, source, checkpoint)
    for i, block in enumerate(() if run.unrolled else blocks):
        first = done.first if i == 0 else None
        yield from _kept(i, block, done.layers[i], beats, first, done.sources)
        yield from _pinned(i, block, done.layers[i], beats)
        for beat in beats:
            if beat.work == "layer" and beat.stretch == i:
                moment = _layer_moment(block, done.at(i, block, beat), done, beat)
                yield from _working(f"{block.title}: at work", moment, beat, run, source)
    for beat in () if run.unrolled else beats:
        if beat.work == "head":
            moment = _head_moment(done, beat)
            yield from _working("final norm, logits and loss", moment, beat, run, done.sources.head)


def _kept(
    index: int,
    block: LayerGroup,
    walk: BlockWalk,
    beats: tuple[StepInstant, ...],
    first: BlockWalk | None,
    sources: LayerSources,
) -> Iterator[Entry]:
    """What one layer keeps from forward to backward, times the layers that are waiting.

    The first layer is there whenever another one is. Under a checkpoint its input is made to take
    a gradient (PEFT 0.21.2 peft_model.py _prepare_model_for_gradient_checkpointing).
    """
    full = block.recompute == "full"
    one = 0 if first is None else 1
    yield Entry(
        name=f"{block.title}: {'checkpointed inputs' if full else 'kept for backward'}",
        kind=ACT,
        bytes=walk.input_bytes if full else walk.saved_bytes,
        live={b.name: larger(b.saved[index] - one, 0) for b in beats},
        source=sources.checkpoint if full else sources.layer,
        parts=() if full else walk.saved,
        role=CHECKPOINTED if full else "",
    )
    if first is not None:
        yield Entry(
            name=f"{block.title}: kept for backward by the first, whose input takes no gradient",
            kind=ACT, bytes=first.saved_bytes, source=sources.layer, parts=first.saved,
            live={b.name: smaller(b.saved[index], 1) for b in beats},
        )  # fmt: skip


def _pinned(
    index: int, block: LayerGroup, walk: BlockWalk, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """What bitsandbytes' int8 matmuls keep although a checkpoint or backward would let it go.

    Behind backward of a layer it stays until all of backward is done. A checkpoint that is not
    reentrant keeps it from forward on; a reentrant one runs forward without a graph.
    """
    if nothing(walk.pinned):
        return
    full = block.recompute == "full"
    live: dict[str, Num] = {}
    for b in beats:
        working = 1 if b.work == "layer" and b.stretch == index and not full else 0
        behind = block.count - b.saved[index] - working
        if b.instant.phase == BACKWARD and not (full and block.reentrant):
            live[b.name] = behind
        if full and not block.reentrant:
            live[b.name] = live.get(b.name, 0) + b.saved[index]
    yield Entry(
        name=f"{block.title}: inputs of int8 projections, held by the graph", kind=ACT,
        bytes=walk.pinned, live=live,
        source=code("bitsandbytes 0.50.2 autograd/_functions.py MatMul8bitLt: ctx.tensors"),
    )  # fmt: skip


def _layer_moment(
    block: LayerGroup, walk: BlockWalk, done: StageWalks, beat: StepInstant
) -> PeakParts:
    """The layer at work: with a checkpoint it runs forward again before it runs backward.

    A reentrant checkpoint holds the output it has made again until its backward is done
    (torch 2.11 utils/checkpoint.py CheckpointFunction.backward).
    """
    if beat.instant.phase == FORWARD:
        return walk.transient if block.recompute == "full" else walk.forward
    back = walk.later if done.goes(beat) else walk.backward
    if block.recompute != "full":
        return back
    rerun = walk.forward
    again = PeakParts(rerun.act + walk.input_bytes, 0, rerun.temp)  # its output's gradient waits
    output = walk.input_bytes if block.reentrant else 0
    held = 0 if walk.holds_input else walk.input_bytes
    return again.or_higher(back.act + held + output, back.grad, back.temp)


def _head_moment(done: StageWalks, beat: StepInstant) -> PeakParts:
    if beat.instant.phase == FORWARD:
        return done.head.forward
    return done.head.later if done.goes(beat) else done.head.backward


def _working(
    name: str, moment: PeakParts, beat: StepInstant, run: Run, source: Source
) -> Iterator[Entry]:
    parts = (
        (name, ACT, moment.act),
        (f"{name}, weight gradients", GRAD, moment.grad),
        (f"{name}, kernel workspace", TEMP, moment.temp),
    )
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=kind, bytes=size, live={beat.name: 1}, source=source)
