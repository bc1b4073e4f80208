"""What a model makes once and its layers share: ids, tables, masks, the embedding, cast weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from ..autograd.events import BlockEvents, EventRecorder
from ..autograd.reductions import embedding_sort_workspace
from ..ledger.ledger import ACT, EMBEDDED, GRAD, TEMP, TIED, Entry
from ..ledger.num import Num, holds, larger, nothing
from ..ledger.source import code
from ..model.adapters import linears
from ..model.arch import Layer
from ..model.blocks import Moe
from ..modelling.huggingface.setting import BlockSetting
from ..run.phases import BACKWARD
from ..run.run import Run
from .instants import StepInstant
from .layer_groups import LayerGroup
from .optimizers import OPTIMIZERS
from .weights import adapter_shapes, embedding_tensors
from .workspaces import lt_entry

INSIDE = ("layer", "unit")  # a layer computes, or is waited for


def surroundings(
    run: Run,
    how: BlockSetting,
    blocks: tuple[LayerGroup, ...],
    beats: tuple[StepInstant, ...],
) -> Iterator[Entry]:
    """What the model makes once and every layer reads: token ids, rotary tables, masks."""
    live = {b.name: 1 for b in beats if b.work}
    tokens = run.batch * run.seq
    yield Entry(
        name="token ids and labels", kind=ACT, bytes=tokens * 24, live=live,
        source=code("transformers 5.17.0 loss/loss_utils.py:62: ids, padded and shifted labels"),
    )  # fmt: skip
    rotary = max((getattr(b.layer.mixer, "rotary_dim", 0) for b in blocks), default=0)
    if rotary:
        bits = 32 if how.quirks.fp32_rotary_tables else how.bits
        yield Entry(
            name="rotary tables", kind=ACT, bytes=2 * run.seq * rotary * bits // 8, live=live,
            source=code("transformers 5.17.0 modeling_llama.py: cos and sin, made once a forward"),
        )  # fmt: skip
    yield from _masks(run, how, blocks, beats)
    yield from _named(run, how, blocks, beats)
    if run.arch.embedding_dropout and (
        not run.frozen or any(b.recompute == "full" for b in blocks)
    ):  # a frozen embedding's output takes no gradient, but for a checkpoint's sake
        yield Entry(
            name="embedding dropout mask", kind=ACT, bytes=tokens * how.hidden, live=live,
            source=code("torch 2.11 native_dropout keeps a boolean mask"),
        )  # fmt: skip
    yield from _autocast_cache(run, how, blocks, beats)
    yield from _lt_workspaces(run, blocks, beats)


def _masks(
    run: Run, how: BlockSetting, blocks: tuple[LayerGroup, ...], beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """Masks that the model makes for its layers (transformers 5.17.0 masking_utils.py).

    Eager attention gets one in the activations' dtype for each kind of layer (eager_mask, :539);
    SDPA gets a boolean one where a window slides or the family asks for it (sdpa_mask, :373).
    ALiBi under SDPA makes one with a row for every head (modeling_falcon.py:780), which the layers
    keep. The others go when the model returns, but for those that a checkpoint has as arguments.
    Layers that cut their windows from a buffer share one mask (modeling_gpt_neo.py:67). MPT makes
    its own boolean (modeling_mpt.py:324), and masked_fill keeps it.
    """
    kinds = {b.window is not None for b in blocks}
    mixers = [b.layer.mixer for b in blocks]
    eager = run.attention == "eager" or not all(getattr(m, "sdpa", True) for m in mixers)
    asked = any(getattr(m, "always_masked", False) for m in mixers)
    limit = len(run.arch.layers) * run.recompute_quarters // 4 if run.recompute == "full" else 0
    made = [window is not None for window in run.arch.windows] or [False] * len(run.arch.layers)
    kept = len(set(made[:limit]))
    area, bits, count = run.seq * run.seq, 8, 1
    if asked and getattr(mixers[0], "alibi", False):
        area, bits = area * run.batch * getattr(mixers[0], "heads", 1), how.bits
        kept = kept if eager or how.autocast else 1  # autocast casts it in every layer
    elif eager:
        own = any(b.name.endswith("attention.bias") for b in run.arch.buffers)
        area, bits, count = area * run.batch, how.bits, 1 if own else len(set(made))
        if any(getattr(m, "float_bias", False) for m in mixers):
            bits, kept = 8, 1
    elif run.attention != "sdpa" or not (asked or True in kinds):
        return
    elif run.arch.family.startswith("llama4"):
        area = area * run.batch  # chunks start where each sequence does
    kept = min(kept, count)
    live = {b.name: count if b.work in INSIDE and b.inside_forward else kept
            for b in beats if b.work}  # fmt: skip
    yield Entry(
        name="attention masks", kind=ACT, bytes=area * bits // 8, live=live,
        source=code("transformers 5.17.0 masking_utils.py:373 sdpa_mask, :539 eager_mask"),
    )  # fmt: skip


def _named(
    run: Run, how: BlockSetting, blocks: tuple[LayerGroup, ...], beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """The embedding's output, which the model's forward names while the layers run.

    The first layer keeps it where its norm is torch's own, or under a checkpoint. Learnt positions
    are added to it, and named beside it; else it is the first layer's input, which that layer has
    while it runs. A norm behind the embedding (BLOOM) keeps it until backward ends.
    """
    first = blocks[0].layer.norm("pre")
    normed = run.arch.embedding_norm is not None
    learnt = len(run.arch.embedding) > 1
    torch_norm = first is not None and first.impl == "layer"
    if (blocks[0].recompute == "full" or torch_norm) and not (normed or learnt):
        return
    rows = (run.batch + learnt) * run.seq
    alone = type(blocks[0].count) is int and blocks[0].count == 1
    own = 0 if alone and not learnt else None
    inside = [b for b in beats if b.work in INSIDE and b.inside_forward and b.stretch != own]
    yield Entry(
        name="embedding: output", kind=ACT, bytes=rows * how.hidden * how.bits // 8, role=EMBEDDED,
        live={b.name: 1 for b in (beats if normed else inside) if b.work},
        source=code("transformers 5.17.0 modeling_llama.py: inputs_embeds in LlamaModel.forward"),
    )  # fmt: skip


def embedding_script(run: Run, how: BlockSetting) -> BlockEvents:
    """Backward of the embedding, as `embedding_entries` counts it, tensor by tensor."""
    reel = EventRecorder()
    exit_grad = reel.number(run.batch * run.seq * how.hidden * how.bits // 8)
    made = [reel.weight(n * how.weight_bits // 8) for n in embedding_tensors(run)]
    work = embedding_sort_workspace(run.batch * run.seq, run.arch.vocab, how.hidden)
    reel.over(reel.work((work,)))
    reel.free(exit_grad)
    shared = -1
    if run.arch.tied:
        table = reel.sizes[made[0]]
        shared, old = reel.number(table), made[0]
        if how.weight_bits == how.matmul_bits:
            made[0] = reel.weight(table)
            reel.over((shared, old))
        else:
            made[0] = shared
            reel.over((old,))
    return BlockEvents(
        sizes=tuple(reel.sizes), entry=shared, exit=-1, exit_grad=exit_grad, forward=(),
        backward=tuple(reel.events), drops=tuple((0, tensor) for tensor in made),
        work=tuple(reel.works),
    )  # fmt: skip


def embedding_entries(
    run: Run, how: BlockSetting, beats: tuple[StepInstant, ...], *, fresh: bool
) -> Iterator[Entry]:
    """Backward of the embedding: its input's gradient, and a gradient of the whole table.

    A table that is tied to the head has two gradients: the head's waits in autograd's buffer,
    and their sum is a new tensor, because the head's is a transposed view (input_buffer.cpp
    can_accumulate_inplace). Where autocast cast the table, the head's is cast back, a tensor of
    its own that the sum is made in.
    """
    source = code("torch 2.11 embedding_dense_backward: a dense gradient of the table")
    live = {b.name: 1 for b in beats if b.work == "embedding"}
    grad = run.batch * run.seq * how.hidden * how.bits // 8
    yield Entry(name="embedding: gradient of its output", kind=ACT, bytes=grad, live=live,
                source=source)  # fmt: skip
    if run.frozen:
        return
    size = run.arch.embedding_parameters * how.weight_bits // 8
    yield Entry(name="embedding: gradient being made", kind=GRAD, bytes=size, live=live,
                source=source,
                tensors=lambda: [n * how.weight_bits // 8 for n in embedding_tensors(run)],
                )  # fmt: skip
    work = embedding_sort_workspace(run.batch * run.seq, run.arch.vocab, how.hidden)
    if not nothing(work):
        yield Entry(name="embedding: sorted ids and partial sums", kind=TEMP, bytes=work, live=live,
                    source=code("torch 2.11 aten/src/ATen/native/cuda/Embedding.cu"))  # fmt: skip
    buffer = code("torch 2.11 csrc/autograd/input_buffer.cpp: summed out of place")
    table = run.arch.embedding[0].numel * how.weight_bits // 8
    if run.arch.tied and how.weight_bits == how.matmul_bits:
        yield Entry(name="embedding: its gradient and the head's, added", kind=GRAD,
                    bytes=larger(table - grad - work, 0), live=live, source=buffer,
                    role=TIED)  # fmt: skip
    if run.arch.tied and not fresh:
        views = bool(run.options.get("gradient_as_bucket_view"))
        waits = {b.name: 1 for b in beats if (b.later or views) and b.instant.phase == BACKWARD
                 and b.work in ("layer", "embedding")}  # fmt: skip
        yield Entry(name="head: gradient that waits for the embedding's", kind=GRAD, bytes=table,
                    live=waits, source=buffer, role=TIED)  # fmt: skip


def _autocast_cache(
    run: Run, how: BlockSetting, blocks: tuple[LayerGroup, ...], beats: tuple[StepInstant, ...]
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
        cast = _cast_sizes(run, how, block.layer)
        yield Entry(
            name=f"{block.title}: 16-bit weights cached by autocast", kind=TEMP,
            bytes=block.count * sum(cast) * 2, live=live,
            tensors=partial(_doubled, cast, block.count),
            source=code("torch 2.11 autocast_mode.cpp cached_cast: until autocast exits"),
        )  # fmt: skip


def _doubled(elements: list[Num], layers: Num) -> list[Num]:
    """Bytes of 16-bit tensors, layer after layer."""
    return [n * 2 for n in elements] * int(layers)


def _cast_sizes(run: Run, how: BlockSetting, layer: Layer) -> list[Num]:
    """Elements of each matrix of a layer that autocast casts: the adapters', or the model's.

    It knows nothing of the stacked experts that grouped matmuls read.
    """
    if run.adapter is not None:
        casts = run.adapter.bits != how.matmul_bits
        return [prod(shape) for shape in adapter_shapes(run, layer)] if casts else []
    if how.weight_bits == how.matmul_bits or how.frozen:
        return []
    mlp = layer.mlp
    grouped = mlp.experts if isinstance(mlp, Moe) and not mlp.all_tokens else ()
    experts = {weight.dims for weight in grouped}
    return [w.numel for w in layer.weights() if len(w.dims) > 1 and w.dims not in experts]


def _lt_workspaces(
    run: Run, blocks: tuple[LayerGroup, ...], beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """cuBLASLt's workspaces, beside cuBLAS's own: it multiplies where a bias is added (addmm).

    One for each thread that does so: forward's, which runs the optimizer too, and backward's where
    layers run again in it. Muon's iterations are such matmuls (_muon.py:63); Falcon adds its biases
    itself (modeling_falcon.py FalconLinear).
    """
    arch = run.arch
    apart = {id(b.layer): b for b in blocks}.values()
    biased = arch.family != "falcon" and any(one.bias for b in apart for one in linears(b.layer))
    full = sum(b.count for b in blocks if b.recompute == "full")
    head = any(w.name.endswith("lm_head.bias") for w in arch.after_weights())
    count = int(biased or head or OPTIMIZERS[run.optimizer].matrices)
    count = count + int(biased) * holds(full > 0)
    if not nothing(count):
        yield lt_entry(count, beats)
