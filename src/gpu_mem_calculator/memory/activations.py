"""What Hugging Face models keep and need for a moment, as ledger entries.

One set of entries for every engine that runs the transformers code: one GPU, DDP, FSDP and
DeepSpeed differ in where parameters and gradients are, not in what a layer keeps.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..ledger.ledger import ACT, GRAD, TEMP, Entry
from ..ledger.num import Num, larger
from ..ledger.source import code
from .huggingface.head import head_walk
from .huggingface.layer import layer_walk
from .huggingface.ops import Setting
from .run import Precision, Run
from .stack import Block
from .timeline import BACKWARD, FORWARD, Beat
from .walk import Moment, Walk
from .weights import trained_elements

LAYER_CODE = code("transformers 5.17.0 modeling code, walked with autograd's saving rules")
LOSS_CODE = code("transformers 5.17.0 loss/loss_utils.py:51 ForCausalLMLoss")
CHECKPOINT_CODE = code("torch 2.11 utils/checkpoint.py: a checkpoint keeps the layer's input")


class Walks(Struct, frozen=True):
    """The walks of one stage: one for each stretch, and the head's."""

    layers: tuple[Walk, ...]
    head: Walk


def setting(run: Run, precision: Precision) -> Setting:
    """How the run's blocks are executed on one rank."""
    autocast = precision.autocast or run.autocast
    matmul = 16 if autocast else precision.compute
    return Setting(
        batch=run.batch,
        seq=run.seq,
        hidden=run.arch.hidden,
        bits=precision.compute,
        matmul_bits=matmul,
        weight_bits=precision.weights,
        autocast=autocast,
        attention=run.attention,
        cudnn=run.compute_capability in ("9.0", "10.0"),
        frozen=run.frozen,
        adapter=run.adapter,
        quantization=run.quantization,
    )


def walks(run: Run, how: Setting, blocks: tuple[Block, ...]) -> Walks:
    """Walk every distinct layer once, and the head."""
    seen: dict[tuple[int, bool, bool], Walk] = {}
    layers = []
    for block in blocks:
        core, masked = block.recompute == "selective", block.window is not None
        key = (id(block.layer), core, masked)
        if key not in seen:
            seen[key] = layer_walk(how, block.layer, masked=masked, recompute_core=core)
        layers.append(seen[key])
    return Walks(tuple(layers), head_walk(how, run.arch))


def activation_entries(
    run: Run, how: Setting, blocks: tuple[Block, ...], beats: tuple[Beat, ...], done: Walks
) -> Iterator[Entry]:
    """Kept activations, the working sets of layers and head, tables and masks."""
    for i, block in enumerate(blocks):
        yield _kept(i, block, done.layers[i], beats)
        for beat in beats:
            if beat.work == "layer" and beat.stretch == i:
                moment = _layer_moment(block, done.layers[i], beat)
                yield from _working(f"{block.title}: at work", moment, beat, run)
    for beat in beats:
        if beat.work == "head":
            moment = _head_moment(done.head, beat)
            yield from _working("final norm, logits and loss", moment, beat, run, source=LOSS_CODE)
    yield from _around(run, how, blocks, beats)


def _kept(index: int, block: Block, walk: Walk, beats: tuple[Beat, ...]) -> Entry:
    """What one layer keeps from forward to backward, times the layers that are waiting."""
    full = block.recompute == "full"
    name = f"{block.title}: {'checkpointed inputs' if full else 'kept for backward'}"
    return Entry(
        name=name,
        kind=ACT,
        bytes=walk.input_bytes if full else walk.saved_bytes,
        live={b.name: b.saved[index] for b in beats},
        source=CHECKPOINT_CODE if full else LAYER_CODE,
        parts=() if full else walk.saved,
    )


def _layer_moment(block: Block, walk: Walk, beat: Beat) -> Moment:
    """The layer at work: with a checkpoint it runs forward again before it runs backward.

    A reentrant checkpoint holds the output it has made again until its backward is done
    (torch 2.11 utils/checkpoint.py CheckpointFunction.backward).
    """
    if beat.instant.phase == FORWARD:
        return walk.transient if block.recompute == "full" else walk.forward
    back = walk.later if beat.later else walk.backward
    if block.recompute != "full":
        return back
    rerun = walk.forward
    again = Moment(rerun.act + walk.input_bytes, 0, rerun.temp)  # its output's gradient waits
    output = walk.input_bytes if block.reentrant else 0
    return again.or_higher(back.act + walk.input_bytes + output, back.grad, back.temp)


def _head_moment(walk: Walk, beat: Beat) -> Moment:
    if beat.instant.phase == FORWARD:
        return walk.forward
    return walk.later if beat.later else walk.backward


def _working(
    name: str, moment: Moment, beat: Beat, run: Run, source: object = LAYER_CODE
) -> Iterator[Entry]:
    parts = (
        (name, ACT, moment.act),
        (f"{name}, weight gradients", GRAD, run.scaled(moment.grad)),
        (f"{name}, kernel workspace", TEMP, moment.temp),
    )
    for title, kind, size in parts:
        if not (isinstance(size, int) and size == 0):
            yield Entry(name=title, kind=kind, bytes=size, live={beat.name: 1}, source=source)  # type: ignore[arg-type]


def _around(
    run: Run, how: Setting, blocks: tuple[Block, ...], beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """What the model makes once and every layer reads: token ids, rotary tables, masks."""
    live = {b.name: 1 for b in beats if b.work}
    tokens = run.batch * run.seq
    yield Entry(
        name="token ids and labels", kind=ACT, bytes=tokens * 24, live=live,
        source=code("transformers 5.17.0 loss/loss_utils.py:62: ids, padded and shifted labels"),
    )  # fmt: skip
    rotary = next((getattr(b.layer.mixer, "rotary_dim", 0) for b in blocks), 0)
    if rotary:
        yield Entry(
            name="rotary tables", kind=ACT, bytes=2 * run.seq * rotary * how.bits // 8, live=live,
            source=code("transformers 5.17.0 modeling_llama.py: cos and sin, made once a forward"),
        )  # fmt: skip
    yield from _masks(run, how, blocks, beats)
    yield from _named(run, how, blocks, beats)
    if run.arch.embedding_dropout:
        yield Entry(
            name="embedding dropout mask", kind=ACT, bytes=tokens * how.hidden, live=live,
            source=code("torch 2.11 native_dropout keeps a boolean mask"),
        )  # fmt: skip
    yield from _embedding(run, how, beats)
    yield from _autocast_cache(run, how, blocks, beats)


def _masks(
    run: Run, how: Setting, blocks: tuple[Block, ...], beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """Masks that the model makes for its layers (transformers 5.17.0 masking_utils.py).

    Eager attention gets one in the activations' dtype for each kind of layer (eager_mask, :539);
    SDPA gets a boolean one where a window slides or the family asks for it (sdpa_mask, :373).
    ALiBi under SDPA makes one with a row for every head (modeling_falcon.py:780), which the layers
    keep. The others go when the model returns, but for a checkpoint that has them as arguments.
    """
    kinds = {b.window is not None for b in blocks}
    mixers = [b.layer.mixer for b in blocks]
    eager = run.attention == "eager" or not all(getattr(m, "sdpa", True) for m in mixers)
    asked = any(getattr(m, "always_masked", False) for m in mixers)
    kept = any(b.recompute == "full" for b in blocks)
    area, bits, count = run.seq * run.seq, 8, 1
    if asked and getattr(mixers[0], "alibi", False):
        area, bits = area * run.batch * getattr(mixers[0], "heads", 1), how.bits
        kept = kept or not eager
    elif eager:
        area, bits, count = area * run.batch, how.bits, len(kinds)
    elif run.attention != "sdpa" or not (asked or True in kinds):
        return
    live = {
        b.name: 1 for b in beats if (kept and b.work) or (b.work == "layer" and b.inside_forward)
    }
    yield Entry(
        name="attention masks", kind=ACT, bytes=count * area * bits // 8, live=live,
        source=code("transformers 5.17.0 masking_utils.py:373 sdpa_mask, :539 eager_mask"),
    )  # fmt: skip


def _named(
    run: Run, how: Setting, blocks: tuple[Block, ...], beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """The embedding's output, which the model's forward names while the layers run.

    The first layer keeps it where its norm is torch's own, or under a checkpoint. Learnt positions
    are added to it, and named beside it. A norm behind the embedding (BLOOM) keeps it until
    backward ends.
    """
    first = blocks[0].layer.norm("pre")
    normed = run.arch.embedding_norm is not None
    learnt = len(run.arch.embedding) > 1
    torch_norm = first is not None and first.impl == "layer"
    if (blocks[0].recompute == "full" or torch_norm) and not (normed or learnt):
        return
    rows = (run.batch + learnt) * run.seq
    inside = [b for b in beats if b.work == "layer" and b.inside_forward]
    yield Entry(
        name="embedding: output", kind=ACT, bytes=rows * how.hidden * how.bits // 8,
        live={b.name: 1 for b in (beats if normed else inside) if b.work},
        source=code("transformers 5.17.0 modeling_llama.py: inputs_embeds in LlamaModel.forward"),
    )  # fmt: skip


def _embedding(run: Run, how: Setting, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    """Backward of the embedding: its input's gradient, and a gradient of the whole table.

    A table that is tied to the head has two gradients: the head's waits in autograd's buffer,
    and their sum is a new tensor (input_buffer.cpp; the head's is a transposed view).
    """
    source = code("torch 2.11 embedding_dense_backward: a dense gradient of the table")
    live = {b.name: 1 for b in beats if b.work == "embedding"}
    grad = run.batch * run.seq * how.hidden * how.bits // 8
    yield Entry(name="embedding: gradient of its output", kind=ACT, bytes=grad, live=live,
                source=source)  # fmt: skip
    if run.frozen:
        return
    size = run.scaled(run.arch.embedding_parameters) * how.weight_bits // 8
    yield Entry(name="embedding: gradient being made", kind=GRAD, bytes=size, live=live,
                source=source)  # fmt: skip
    if run.arch.tied:
        buffer = code("torch 2.11 csrc/autograd/input_buffer.cpp: summed out of place")
        yield Entry(name="embedding: its gradient and the head's, added", kind=GRAD,
                    bytes=larger(size - grad, 0), live=live, source=buffer)  # fmt: skip
        waits = {b.name: 1 for b in beats if b.later and b.work in ("layer", "embedding")
                 and b.instant.phase == BACKWARD}  # fmt: skip
        yield Entry(name="head: gradient that waits for the embedding's", kind=GRAD, bytes=size,
                    live=waits, source=buffer)  # fmt: skip


def _autocast_cache(
    run: Run, how: Setting, blocks: tuple[Block, ...], beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """16-bit copies of the weights that autocast keeps until forward ends.

    Without recompute the layers keep them for backward anyway and they are counted there.
    """
    if not how.autocast:
        return
    live = {b.name: 1 for b in beats if b.inside_forward}
    for block in blocks:
        if block.recompute != "full":
            continue
        cast: Num = 0
        if how.weight_bits != how.matmul_bits:
            cast = sum(w.numel for w in block.layer.weights() if len(w.dims) > 1)
        if run.adapter is not None and run.adapter.bits != how.matmul_bits:
            cast = trained_elements(run, block.layer)
        yield Entry(
            name=f"{block.title}: 16-bit weights cached by autocast", kind=TEMP,
            bytes=block.count * run.scaled(cast) * 2, live=live,
            source=code("torch 2.11 autocast_mode.cpp cached_cast: until autocast exits"),
        )  # fmt: skip
