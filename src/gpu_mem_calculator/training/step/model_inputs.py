"""What a model's forward makes once for all its layers: ids, tables, masks, the embedding's output,
cast weights.

Sizes are in `pytorch/modelling/huggingface/inputs.py`; here is when each tensor is alive in a
training step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from ...ledger.ledger import (
    ACT,
    AFTER_EMBEDDING,
    AFTER_MASKS,
    BEFORE_INPUT,
    EMBEDDED,
    WITH_INPUT,
    Entry,
)
from ...ledger.num import EMPTY, Bytes, Num, holds, larger, nothing, sized
from ...ledger.source import Source, code
from ...models.arch.adapters import linears
from ...pytorch.autograd.walk import BlockWalk
from ...pytorch.modelling.huggingface.inputs import (
    EMBEDDING_CODE,
    MASK_CODE,
    TABLE_CODE,
    always_masked,
    embedding_bytes,
    mask_bytes,
    mask_events,
    needs_mask,
    rotary_width,
    runs_eager,
    table_bits,
    table_bytes,
    table_events,
)
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.phases import BACKWARD, FORWARD
from ...run.recompute import SELECTIVE
from ...run.run import Run
from ..optimizers import OPTIMIZERS
from .instants import Instants, StepInstant
from .layer_groups import CHECKPOINTED_POLICIES, LayerGroup, LayerGroups, layer_policy
from .workspaces import lt_entry

STACK = ("layer", "unit")  # what runs while the model's forward is in its layers


def in_stack(instant: StepInstant) -> bool:
    """Whether a layer runs forward, or FSDP waits for its weights."""
    return instant.work in STACK and instant.inside_forward


def input_entries(
    run: Run, setting: BlockSetting, groups: LayerGroups, instants: Instants, *, kept: bool
) -> Iterator[Entry]:
    """Entries of token ids, rotary tables, masks, the embedding's output and its dropout mask, and
    cuBLASLt's workspaces. `kept`: the first layer keeps its input for backward.
    """
    live = {i.name: 1 for i in instants if i.work}
    tokens = run.batch * run.seq
    labels = code("transformers 5.17.0 loss/loss_utils.py:62: ids, padded and shifted labels")
    copies = 2 if setting.quirks.labels_shifted else 3
    yield _kept("token ids and labels", sized(copies * tokens, 64), live, labels)
    yield from _embedding_output(run, setting, groups, instants, kept=kept)
    yield from _mask_entries(run, setting, groups, instants)
    width = rotary_width((g.layer.mixer for g in groups), latent=False)
    computed_in_kernels = setting.quirks.stored_rotary_table or setting.compiled
    if width and not computed_in_kernels:
        yield Entry(
            name="rotary tables",
            kind=ACT,
            bytes=table_bytes(setting, run.seq, _stage_width(groups)),
            live=live,
            source=TABLE_CODE,
            role=AFTER_MASKS,
            tensors=lambda: [table_bytes(setting, run.seq, width) // 2] * 2,
            script=table_events(run.seq * width, table_bits(setting)),
        )
    if run.arch.embedding_dropout and (
        not run.frozen or any(g.checkpointed for g in groups)
    ):  # a frozen embedding's output takes no gradient, except for a checkpoint
        boolean = code("torch 2.11 native_dropout keeps a boolean mask")
        size = sized(tokens * setting.hidden, 8) * holds(run.stage == 0)
        mask = _kept("embedding dropout mask", size, _until_embedding(instants), boolean)
        yield replace(mask, role=WITH_INPUT)
    if run.unrolled and int(run.stage) == 0 and _remakes_output(run, setting):
        yield Entry(
            name="embedding: its output before the last operation",
            kind=ACT,
            bytes=sized(tokens * setting.hidden, setting.bits),
            live={},
            source=EMBEDDING_CODE,
            role=BEFORE_INPUT,
        )
    yield from _lt_workspaces(run, groups, instants)


def _has_layers(groups: Iterable[LayerGroup]) -> Num:
    """1 where a stage has layers of these groups, else 0."""
    layers: Num = sum(group.count for group in groups)
    return holds(layers > 0)


def _stage_width(groups: LayerGroups) -> Num:
    """The widest rotary embedding of the layers that a pipeline stage has; 0: it has none."""
    width: Num = 0
    for group in groups:
        own = rotary_width((group.layer.mixer,), latent=False)
        width = larger(width, own * _has_layers((group,))) if own else width
    return width


def _remakes_output(run: Run, setting: BlockSetting) -> bool:
    """Whether the embedding makes a tensor that no name refers to once the first layer's input
    exists: its output before it is scaled, or the sum with learnt positions before dropout.
    """
    summed = len(run.arch.embedding) > 1 and run.arch.embedding_dropout > 0
    return setting.quirks.scaled_embedding or summed


def _until_embedding(instants: Instants) -> dict[str, Num]:
    """Instants of each micro-batch before the embedding's backward, which frees what its dropout or
    norm has saved.
    """
    live: dict[str, Num] = {}
    over = False
    for i in instants:
        over = i.instant.phase == BACKWARD and (over or i.work == "embedding")
        if i.work and not over:
            live[i.name] = 1
    return live


def _kept(name: str, size: Bytes, live: Mapping[str, Num], source: Source) -> Entry:
    """Activations of `size` bytes."""
    return Entry(name=name, kind=ACT, bytes=size, live=live, source=source)


def _mask_entries(
    run: Run, setting: BlockSetting, groups: LayerGroups, instants: Instants
) -> Iterator[Entry]:
    """The masks that the model makes for its layers.

    ALiBi under SDPA makes one with a row for every attention head (modeling_falcon.py:780), which
    the layers keep. The others are freed when the model returns, except those that a checkpoint
    has as arguments. Layers that take their windows from a buffer share one mask
    (modeling_gpt_neo.py:67). MPT makes its own boolean (modeling_mpt.py:324), and masked_fill keeps
    it.
    """
    if setting.compiled:
        from .compiled import compiled_masks

        yield compiled_masks(run, setting, groups, instants)
        return
    mixers = [g.layer.mixer for g in groups]
    eager = runs_eager(run.attention, mixers)
    windowed = [w is not None for w in run.arch.windows] or [False] * len(run.arch.layers)
    held = {w for i, w in enumerate(windowed) if layer_policy(run, i) in CHECKPOINTED_POLICIES}
    lasting = len(held)  # masks that are alive after forward
    masked = [g for g in groups if needs_mask(setting, g.layer.mixer, eager=eager, slides=g.masked)]
    area, count = run.seq * run.seq, 1
    padded = run.batch if run.padded else None
    size = mask_bytes(setting, area, padded or 1, eager=eager)
    if any(map(always_masked, mixers)) and getattr(mixers[0], "alibi", False):
        size = sized(area * run.batch * getattr(mixers[0], "heads", 1), setting.bits)
        if not (eager or setting.autocast):  # autocast casts it in every layer
            lasting = 1
    elif eager:
        from_buffer = any(b.name.endswith("attention.bias") for b in run.arch.buffers)
        count = 1 if from_buffer else len(set(windowed))
        if any(getattr(m, "float_bias", False) for m in mixers):
            size, lasting = mask_bytes(setting, area, run.batch, eager=False), 1
    elif run.attention != "sdpa" or not masked:
        return
    else:
        if run.arch.family.startswith("llama4"):  # chunks start where each sequence does
            size = mask_bytes(setting, area, run.batch, eager=False)
        size = size * _has_layers(masked)  # a pipeline stage may have none of them
        count = len(set(windowed)) if run.documents > 1 else 1
    lasting = min(lasting, count)
    working = [i for i in instants if i.work]
    live = {i.name: count if in_stack(i) else lasting for i in working}
    masks = replace(_kept("attention masks", size, live, MASK_CODE), role=AFTER_EMBEDDING)
    slides = run.documents > 1 or (any(windowed) and (all(windowed) or not eager))
    script = mask_events(area, padded, size if eager else None, slides=slides)
    if run.unrolled and int(script.sizes[script.left[0]]) == int(size):
        masks = replace(masks, script=script)
    yield masks


def masks_at_final_norm(
    run: Run, entries: Iterable[Entry], instants: Instants, head: BlockWalk
) -> Iterator[Entry]:
    """What the masks add to the head's peak in forward: they are alive in the final norm, until the
    model's forward returns, and are freed before the loss. Under DeepSpeed the head begins without.
    """
    if "zero_stage" in run.options:
        return
    first = [i for i in instants if i.work == "head" and i.instant.phase == FORWARD]
    layers = [i.name for i in instants if in_stack(i)]
    for masks in entries if first and layers else ():
        if masks.role == AFTER_EMBEDDING:
            gone = masks.bytes * (masks.live[layers[-1]] - masks.live.get(first[0].name, 0))
            until = head.script.calls[-1][0] if head.script.calls else 0
            whole = head.forward.act + head.forward.temp
            more = larger(head.script.forward_peak(until) + gone - whole, EMPTY)
            live: dict[str, Num] = {i.name: 1 for i in first}
            if not nothing(more):
                yield _kept("attention masks, in the final norm", more, live, MASK_CODE)


def _embedding_output(
    run: Run, setting: BlockSetting, groups: LayerGroups, instants: Instants, *, kept: bool
) -> Iterator[Entry]:
    """The embedding's output, to which the model's forward refers while the layers run; the head
    counts it until the model's forward returns.

    Learnt positions are a second tensor that is added to it; else it is the first layer's input,
    which that layer counts while it runs. A norm after the embedding (BLOOM) keeps it until its own
    backward.
    """
    normed = run.arch.embedding_norm is not None
    sizes = named_sizes(run, setting, kept=kept)
    if not sizes:
        return
    alone = type(groups[0].count) is int and groups[0].count == 1
    counted = 0 if alone and len(sizes) == 1 else None
    inside = [i for i in instants if in_stack(i) and i.stretch != counted]
    if len(sizes) > 1:  # they exist before FSDP gathers the first layer
        inside = [i for i in instants if i.work in STACK and i.instant.phase == FORWARD]
    yield Entry(
        name="embedding: output",
        kind=ACT,
        role=EMBEDDED,
        source=EMBEDDING_CODE,
        bytes=sum(sizes, EMPTY) * (holds(run.stage == 0) if normed else 1),
        live=_until_embedding(instants) if normed else {i.name: 1 for i in inside},
        tensors=lambda: sizes,
    )


def named_sizes(run: Run, setting: BlockSetting, *, kept: bool) -> tuple[Bytes, ...]:
    """Bytes of the embedding's outputs, apart from one that the first layer keeps (`kept`)."""
    tables = len(run.arch.embedding)
    if setting.compiled:
        return ()  # no Python name
    if kept and tables == 1 and not run.arch.embedding_norm:
        return ()
    if setting.quirks.embedding_output_unnamed:
        return ()
    return embedding_bytes(setting, run.seq, tables, position_rows=1)


def named_until_return(run: Run, setting: BlockSetting, *, kept: bool) -> tuple[Bytes, ...]:
    """Bytes of the embedding's outputs that are freed when the model's forward returns. Stages of a
    pipeline have no such forward. `kept`: the first layer keeps its input for backward.
    """
    alone = isinstance(run.mesh.pp, int) and run.mesh.pp == 1
    return named_sizes(run, setting, kept=kept) if alone and not run.arch.embedding_norm else ()


def _lt_workspaces(run: Run, groups: LayerGroups, instants: Instants) -> Iterator[Entry]:
    """cuBLASLt's workspaces, in addition to cuBLAS's: it runs matmuls that add a bias (addmm).

    One for each thread that runs such matmuls: forward's, which runs the optimizer too, and
    backward's where layers are recomputed in it. Muon's iterations are such matmuls (_muon.py:63);
    Falcon adds its biases itself (modeling_falcon.py FalconLinear).
    """
    arch = run.arch
    layers = {id(g.layer): g.layer for g in groups}.values()
    biased = arch.family != "falcon" and any(one.bias for layer in layers for one in linears(layer))
    full = sum(g.count for g in groups if g.checkpointed or _recomputes_biases(g))
    head = any(w.name.endswith("lm_head.bias") for w in arch.after_weights())
    count: Num = int(biased or head or OPTIMIZERS[run.optimizer].matrices)
    count = count + int(biased) * holds(full > 0)
    if not nothing(count):
        yield lt_entry(count, instants)


def _recomputes_biases(group: LayerGroup) -> bool:
    """Whether checkpoints around modules recompute matmuls that add a bias; the last one of a
    module is not recomputed.
    """
    if group.recompute != SELECTIVE:
        return False
    blocks = {"attention": group.layer.mixer, "mlp": group.layer.mlp}
    chosen = [blocks[name] for name in group.rule.modules if name in blocks]
    return any(one.bias for block in chosen for one in getattr(block, "inputs", ()))
