"""What is not inside a Megatron layer: embedding, micro-batches in flight, buffers that stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....ledger.ledger import ACT, COMM, GRAD, HEAD_GRADIENT, PER_MICRO_BATCH, RUNTIME, TEMP, Entry
from ....ledger.num import Bytes, Num, holds, larger, sized, smaller
from ....ledger.source import code
from ....models.arch.blocks import Mixer, Moe
from ....pytorch.autograd.reductions import embedding_sort_workspace
from ....pytorch.modelling.huggingface.inputs import rotary_width
from ....pytorch.modelling.megatron.ops import MegatronSetting
from ....run.phases import BACKWARD, FORWARD, OPTIMIZER, STARTUP
from ....run.run import Run
from ...step.instants import Instants
from ...step.pipeline import PipelineStage
from .options import fused, is_nanotron, option, shares_gradient
from .options import setting as megatron_setting
from .shards import embedding_shard, local_vocab, matrices
from .walks import sent_gradient

EMBEDDING_CODE = code("megatron-core 0.19.2 tensor_parallel/layers.py:339 VocabParallelEmbedding")
SHARED_CODE = code("torch 2.11 csrc/autograd/input_buffer.cpp: a leaf's gradients are summed first")
PIPELINE_CODE = code("megatron-core 0.19.2 pipeline_parallel/schedules.py:2300-2440")
DROPOUT_CODE = code("torch 2.11 native_dropout keeps a boolean mask")
SORT_CODE = code("torch 2.11 aten/src/ATen/native/cuda/Embedding.cu")
BATCH_CODE = code("Megatron-LM core_r0.19.0 pretrain_gpt.py get_batch")
DEFERRED_CODE = code("megatron-core 0.19.2 tensor_parallel/layers.py embedding_activation_buffer")
MASK_CODE = code("megatron-core 0.19.2 fusions/fused_softmax.py: boolean [1, 1, s, s]")
INPUT_CODE = code("megatron-core 0.19.2 transformer/transformer_block.py set_input_tensor")
BUFFER_CODE = code("megatron-core 0.19.2 utils.py GlobalMemoryBuffer: scores, gathered inputs")
TABLE_CODE = code("flash-attn 2.8.3 layers/rotary.py _update_cos_sin_cache, one a layer")
ROTARY_CODE = code("megatron-core 0.19.2 rotary_pos_embedding.py:177: cached in fp32")
DUMMY_CODE = code("Transformer Engine 2.18 module/base.py:110: one a shape, for ever")


def in_step(instants: Instants) -> dict[str, Num]:
    """One copy at every instant of a micro-batch."""
    return {i.name: 1 for i in instants if i.work}


def model_input_entries(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """Entries of everything that is not inside a layer or the head."""
    yield from _embedding(run, setting, stage, instants)
    yield from _micro_batches(run, setting, stage, instants)
    yield from _buffers(run, setting, stage, instants)
    if option(run, "defer_embedding_wgrad_compute"):
        yield _deferred(run, setting, stage, instants)


def _deferred(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Entry:
    """Inputs of the output layer and gradients of the logits that wait until the pipeline drains,
    of the micro-batches before the one at work, and of that one in its layers' backward.

    tensor_parallel/layers.py:560, 691; the first `wgrad_deferral_limit` micro-batches are deferred.
    """
    count = run.micro_batches
    limit = option(run, "wgrad_deferral_limit") or count
    before, all_of_them = smaller(count - 1, limit), smaller(count, limit)
    back = [i for i in instants if i.instant.phase == BACKWARD and i.work == "layer"]
    live = dict.fromkeys(in_step(instants), before * stage.last)
    live |= {i.name: all_of_them * stage.last for i in back}
    kept = setting.local_tokens * setting.hidden + setting.tokens * local_vocab(run)
    name = "output layer: deferred inputs and gradients"
    return Entry(name, ACT, sized(kept, setting.bits), live, DEFERRED_CODE)


def _embedding(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """Ids with a mask where the table is sharded, a dropout mask; a dense gradient in backward."""
    live = dict.fromkeys(in_step(instants), stage.flight * stage.first)
    masked = sized(holds(run.mesh.tp > 1) * 9 * setting.tokens, 8)
    role, name = PER_MICRO_BATCH, "embedding: masked token ids"
    yield Entry(name, ACT, masked, live, EMBEDDING_CODE, role=role)
    if run.arch.embedding_dropout:
        size = sized(setting.local_tokens * setting.hidden, 8)
        yield Entry("embedding: dropout mask", ACT, size, live, DROPOUT_CODE, role=role)
    yield from _embedding_backward(run, setting, instants)
    if shares_gradient(run):
        yield _shared_gradient(run, setting, stage, instants)


def _shared_gradient(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Entry:
    """The output layer's gradient of a table that it shares with the embedding of the same stage:
    it waits for the embedding's, and both are added to the main gradient.
    """
    both = stage.first * stage.last
    works = ("layer", "embedding")
    live = {i.name: both for i in instants if i.instant.phase == BACKWARD and i.work in works}
    size = sized(run.scaled(local_vocab(run) * setting.hidden), setting.bits)
    name = "output layer: gradient of the shared table"
    return Entry(name, GRAD, size, live, SHARED_CODE, role=HEAD_GRADIENT)


def embedding_steps(run: Run) -> tuple[int, ...]:
    """Bytes of the tensors that the embedding makes, in order; the last is its output.

    models/common/embeddings/language_model_embedding.py:108-152: words, learnt positions and the
    sum, [s, b, h] where there are several samples, this rank's part of the sequence and a clone
    of it, dropout.
    """
    setting = megatron_setting(run, selective=False)
    full = int(sized(setting.tokens * setting.hidden, setting.bits))
    local = int(sized(setting.local_tokens * setting.hidden, setting.bits))
    learnt = len(run.arch.embedding) > 1
    steps = [full, *[full] * (2 * learnt), *[full] * bool(setting.batch > 1)]
    if setting.gathers:
        steps += [local] * (1 if learnt else 2)
    return (*steps, *[local] * bool(run.arch.embedding_dropout))


def _embedding_backward(run: Run, setting: MegatronSetting, instants: Instants) -> Iterator[Entry]:
    """The gathered gradient of the output, transposed to [b, s, h] where there are several samples,
    and a dense gradient of the table; that of learnt positions is freed by then.
    """
    now = {i.name: 1 for i in instants if i.work == "embedding"}
    output, several = sized(setting.tokens * setting.hidden, setting.bits), holds(setting.batch > 1)
    yield Entry("embedding: gradient of its output", ACT, output, now, EMBEDDING_CODE)
    yield Entry("embedding: the same, turned", ACT, output * several, now, EMBEDDING_CODE)
    table = run.scaled(local_vocab(run) * setting.hidden)
    rest = embedding_shard(run).dense - table
    size = sized(larger(table, rest), setting.bits)
    yield Entry("embedding: gradient being computed", GRAD, size, now, EMBEDDING_CODE)
    size = embedding_sort_workspace(setting.tokens, local_vocab(run), setting.hidden)
    yield Entry("embedding: sorted ids and partial sums", TEMP, size, now, SORT_CODE)


def _micro_batches(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """Ids, labels and mask of each micro-batch in flight, and tensors between stages.

    Without a pipeline the last ones stay alive until the next step replaces them.
    """
    alone, role = holds(run.mesh.pp == 1), PER_MICRO_BATCH
    started = [i for i in instants if i.instant.phase != STARTUP]
    flight = {i.name: stage.flight if i.work else alone for i in started}
    size, mask = sized(2 * setting.tokens, 64), sized(run.seq * run.seq, 8)
    yield Entry("token ids and positions", ACT, size, flight, BATCH_CODE, role=role)
    if not (fused(run) or is_nanotron(run)):
        yield Entry("attention mask", ACT, mask, flight, MASK_CODE, role=role)
    if isinstance(run.mesh.pp, int) and run.mesh.pp == 1:
        return
    yield from _between_stages(run, setting, stage, instants)


def _between_stages(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """Tensors that stages send to each other, each of the size of the hidden states.

    With interleaving the first and the last stage have neighbours on both sides, too; only the
    chunk with the loss sends nothing on.
    """
    names, working = in_step(instants), [i for i in instants if i.work]
    stream = sized(setting.local_tokens * setting.hidden, setting.bits) * holds(run.mesh.pp > 1)
    woven = holds(run.virtual_stages > 1)
    steady = holds(run.micro_batches * run.virtual_stages > stage.flight)
    alone = {i.name: stage.loss * (1 if i.work == "head" else 1 - woven * steady) for i in instants}
    if not option(run, "deallocate_pipeline_outputs"):
        none = {i.name: 1 if i.instant.phase == FORWARD else alone[i.name] for i in working}
        live: dict[str, Num] = {name: stage.flight - less for name, less in none.items()}
        yield Entry("stage outputs", COMM, stream, live, PIPELINE_CODE, role=PER_MICRO_BATCH)
    back = [i for i in working if i.instant.phase == BACKWARD]
    # the walk of a chunk's last layer has the gradient that the chunk receives
    back = [i for i in back if i.work != "layer" or i.stretch not in stage.receiving]
    live = {i.name: 1 - alone[i.name] - sent_gradient(stage, i) for i in back}
    yield Entry("gradient received from the next stage", COMM, stream, live, PIPELINE_CODE)
    live = dict.fromkeys(names, larger(1 - stage.first, woven) * steady)
    yield Entry("gradient sent to the stage before", COMM, stream, live, PIPELINE_CODE)
    if run.micro_batch_group:
        live = dict.fromkeys(names, early_tensors(run, stage))
        yield Entry("inputs and gradients received early", COMM, stream, live, PIPELINE_CODE)
    fed = run.virtual_stages - stage.first  # chunks that get their input from another stage
    waiting = [i for i in instants if i.work == "layer" or i.instant.phase == OPTIMIZER]
    live = {i.name: idle_chunks(run) if i.work else fed for i in waiting}
    name = "last inputs of idle chunks, and their gradients"
    yield Entry(name, COMM, 2 * stream, live, INPUT_CODE)


def early_tensors(run: Run, stage: PipelineStage) -> Num:
    """Tensors that wait for their chunk (schedules.py fwd_recv_buffer_size,
    recv_tensor_from_previous_stage).

    The first stage gets the inputs of its later chunks, and the last one the gradients of its
    earlier chunks, as soon as they are made: group - pp passes before their use.

    The first stage's peak has them in the second group, if there is one; of a single group the last
    stage's peak has two fewer.
    """
    pp, group, count = run.mesh.pp, run.micro_batch_group, run.micro_batches
    inputs = larger(smaller(group, count - group) - pp, 0)
    gradients = larger(group - pp - 2 * holds(count <= group), 0)
    return (stage.first * inputs + stage.last * gradients) * holds(run.virtual_stages > 1)


def idle_chunks(run: Run) -> Num:
    """The most chunks of an interleaved stage that wait for their next group at once.

    A chunk's block refers to its last input until it gets another one. Forward is ahead of backward
    by (chunks - 1) × group + 2 (pp - stage - 1) passes. Once backward has done j chunks of a group,
    forward has begun j + s of the next one, s = (2 (pp - stage - 1) + 1) // group; the chunks
    that have neither are min(j, chunks - j - s).
    """
    pp, group = run.mesh.pp, run.micro_batch_group or run.mesh.pp
    ahead = (2 * (pp - run.stage - 1) + 1) // group
    most = larger(run.virtual_stages - ahead, 0) // 2
    return most * holds(run.virtual_stages > 1) * holds(run.micro_batches > group)


def _buffers(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """Buffers that are made in the first step and never freed."""
    live = {i.name: 1 for i in instants if i.instant.phase != STARTUP}
    if is_nanotron(run):
        size = sum(buffer.num_bytes for buffer in run.arch.buffers) // len(run.arch.layers)
        total = sized(size, 8) * sum(stage.held)
        yield Entry("rotary tables of the layers", RUNTIME, total, live, TABLE_CODE)
        return
    mixers = [group.layer.mixer for group in stage.blocks]
    shared = gathered = setting.full_bytes(setting.hidden)
    routed = any(isinstance(group.layer.mlp, Moe) for group in stage.blocks)
    tokens = setting.local_tokens * setting.etp * setting.ep * holds(setting.etp * setting.ep > 1)
    dispatched = sized(tokens * setting.hidden, setting.bits) * (routed and setting.gathers_tokens)
    if fused(run):
        shared = larger(gathered * stage.last, dispatched)
    else:
        shared = larger(larger(score_bytes(setting, mixers), gathered), dispatched)
    rotary = rotary_width(mixers, latent=True)
    yield Entry("global memory buffer", COMM, shared, live, BUFFER_CODE)
    yield Entry("rotary frequencies", RUNTIME, sized(run.seq * rotary, 32), live, ROTARY_CODE)
    if setting.fused_weight_gradients:
        size = _dummy_gradient_bytes(run, setting, stage)
        yield Entry("dummy weight gradients", GRAD, size, live, DUMMY_CODE)


def score_bytes(setting: MegatronSetting, mixers: Iterable[Mixer | None]) -> Bytes:
    """Bytes of the scores of unfused attention on one rank, the most of all layers."""
    heads = max(getattr(mixer, "heads", 0) for mixer in mixers) // setting.tp
    return sized(setting.batch * heads * setting.seq * setting.seq, setting.bits)


def _dummy_gradient_bytes(run: Run, setting: MegatronSetting, stage: PipelineStage) -> Bytes:
    """Bytes of one 16-bit tensor for each distinct shape of a weight with fused gradients."""
    sizes: dict[tuple[int, ...], Num] = {}
    for block, count in zip(stage.blocks, stage.held, strict=True):
        for shape, size, _ in matrices(run, block.layer):
            sizes[shape] = larger(sizes.get(shape, 0), size * holds(count > 0))
    total = sum(sizes.values()) + stage.last * local_vocab(run) * setting.hidden
    return sized(total, setting.bits)
