"""What surrounds Megatron's layers: the embedding, micro-batches in flight, buffers that stay."""

from __future__ import annotations

from collections.abc import Iterator

from ...autograd.reductions import embedding_sort_workspace
from ...ledger.ledger import ACT, COMM, GRAD, PER_MICRO_BATCH, RUNTIME, TEMP, Entry
from ...ledger.num import Num, holds, larger
from ...ledger.source import code
from ...modelling.megatron.ops import MegatronSetting
from ...run.phases import BACKWARD, FORWARD, OPTIMIZER, STARTUP
from ...run.run import Run
from ...step.instants import StepInstant
from ...step.pipeline import PipelineStage
from .options import fused, option, setting
from .shards import embedding_shard, local_vocab, matrices
from .walks import given

EMBEDDING_CODE = code("megatron-core 0.19.2 tensor_parallel/layers.py:339 VocabParallelEmbedding")
PIPELINE_CODE = code("megatron-core 0.19.2 pipeline_parallel/schedules.py:2300-2440")


def in_step(beats: tuple[StepInstant, ...]) -> dict[str, Num]:
    """Alive while micro-batches run."""
    return {b.name: 1 for b in beats if b.work}


def surroundings(
    run: Run, how: MegatronSetting, stage: PipelineStage, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """Everything that is not inside a layer or the head."""
    yield from _embedding(run, how, stage, beats)
    yield from _micro_batches(run, how, stage, beats)
    yield from _buffers(run, how, stage, beats)


def _embedding(
    run: Run, how: MegatronSetting, stage: PipelineStage, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """Ids with a mask where the table is cut, a dropout mask; a dense gradient in backward."""
    live = dict.fromkeys(in_step(beats), stage.flight * stage.first)
    masked = holds(run.mesh.tp > 1) * 9 * how.tokens
    yield Entry(name="embedding: masked token ids", kind=ACT, bytes=masked, live=live,
                role=PER_MICRO_BATCH, source=EMBEDDING_CODE)  # fmt: skip
    if run.arch.embedding_dropout:
        yield Entry(
            name="embedding: dropout mask", kind=ACT, bytes=how.local_tokens * how.hidden,
            live=live, role=PER_MICRO_BATCH,
            source=code("torch 2.11 native_dropout keeps a boolean mask"),
        )  # fmt: skip
    yield from _embedding_backward(run, how, beats)


def embedding_steps(run: Run) -> tuple[int, ...]:
    """Bytes of what the embedding makes one after the other; the last is its output.

    models/common/embeddings/language_model_embedding.py:108-152: words, learnt positions and the
    sum, [s, b, h] where there are several samples, this rank's part of the sequence and a clone
    of it, dropout.
    """
    how = setting(run, selective=False)
    full = int(how.tokens * how.hidden * how.bits // 8)
    local = int(how.local_tokens * how.hidden * how.bits // 8)
    learnt = len(run.arch.embedding) > 1
    steps = [full, *[full] * (2 * learnt), *[full] * (how.batch > 1)]
    if how.gathers:
        steps += [local] * (1 if learnt else 2)
    return (*steps, *[local] * bool(run.arch.embedding_dropout))


def _embedding_backward(
    run: Run, how: MegatronSetting, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """The gathered gradient of the output, turned to [b, s, h] where there are several samples,
    and a dense gradient of the table; that of learnt positions has gone by then.
    """
    now = {b.name: 1 for b in beats if b.work == "embedding"}
    output, several = how.tokens * how.hidden * how.bits // 8, holds(how.batch > 1)
    for name, size in (("gradient of its output", output), ("the same, turned", output * several)):
        yield Entry(name=f"embedding: {name}", kind=ACT, bytes=size, live=now,
                    source=EMBEDDING_CODE)  # fmt: skip
    table = run.scaled(local_vocab(run) * how.hidden)
    rest = embedding_shard(run).dense - table
    yield Entry(
        name="embedding: gradient being made", kind=GRAD, live=now, source=EMBEDDING_CODE,
        bytes=larger(table, rest) * how.bits // 8,
    )  # fmt: skip
    yield Entry(
        name="embedding: sorted ids and partial sums", kind=TEMP, live=now,
        bytes=embedding_sort_workspace(how.tokens, local_vocab(run), how.hidden),
        source=code("torch 2.11 aten/src/ATen/native/cuda/Embedding.cu"),
    )  # fmt: skip


def _micro_batches(
    run: Run, how: MegatronSetting, stage: PipelineStage, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """Ids, labels and mask of each micro-batch in flight, and tensors between stages.

    Without a pipeline the last ones are named until the next step brings others.
    """
    alone = holds(run.mesh.pp == 1)
    flight = {b.name: stage.flight if b.work else alone for b in beats
              if b.instant.phase != STARTUP}  # fmt: skip
    yield Entry(name="token ids and positions", kind=ACT, bytes=16 * how.tokens, live=flight,
                role=PER_MICRO_BATCH,
                source=code("Megatron-LM core_r0.19.0 pretrain_gpt.py get_batch"))  # fmt: skip
    if not fused(run):
        yield Entry(
            name="attention mask", kind=ACT, bytes=run.seq * run.seq, live=flight,
            role=PER_MICRO_BATCH,
            source=code("megatron-core 0.19.2 fusions/fused_softmax.py: boolean [1, 1, s, s]"),
        )  # fmt: skip
    if isinstance(run.mesh.pp, int) and run.mesh.pp == 1:
        return
    yield from _between_stages(run, how, stage, beats)


def _between_stages(
    run: Run, how: MegatronSetting, stage: PipelineStage, beats: tuple[StepInstant, ...]
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
            role=PER_MICRO_BATCH,
            live={b.name: stage.flight - (1 if b.instant.phase == FORWARD else alone[b.name])
                  for b in beats if b.work},
        )  # fmt: skip
    yield Entry(
        name="gradient received from the next stage", kind=COMM, bytes=stream,
        live={b.name: 1 - alone[b.name] - given(stage, b) for b in beats
              if b.work and b.instant.phase == BACKWARD},
        source=PIPELINE_CODE,
    )  # fmt: skip
    before = larger(1 - stage.first, woven)
    yield Entry(
        name="gradient sent to the stage before", kind=COMM, bytes=stream,
        live=dict.fromkeys(names, before * steady), source=PIPELINE_CODE,
    )  # fmt: skip
    fed = run.virtual_stages - stage.first  # chunks that get their input from another stage
    yield Entry(
        name="last inputs of idle chunks, and their gradients", kind=COMM, bytes=2 * stream,
        live={b.name: idle_chunks(run) if b.work else fed for b in beats
              if b.work == "layer" or b.instant.phase == OPTIMIZER},
        source=code("megatron-core 0.19.2 transformer/transformer_block.py set_input_tensor"),
    )  # fmt: skip


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


def _buffers(
    run: Run, how: MegatronSetting, stage: PipelineStage, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
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


def _dummies(run: Run, how: MegatronSetting, stage: PipelineStage) -> Num:
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
