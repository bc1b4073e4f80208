"""Entries of a Megatron-DeepSpeed rank besides its layers, the head and ZeRO's tensors.

Batches, masks, tables, the global buffer, the tensors that the embedding saves, and those between
the stages of DeepSpeed's PipelineEngine.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import ACT, COMM, GRAD, LAST, RUNTIME, TEMP, Entry
from ....ledger.num import Bytes, Num, holds, larger, largest, nothing, sized, smaller
from ....ledger.source import Source, code
from ....pytorch.modelling.huggingface.inputs import rotary_width
from ....pytorch.modelling.megatron.ops import MegatronSetting
from ....run.phases import BACKWARD, FORWARD
from ....run.recompute import FULL
from ....run.run import Run
from ...step.instants import Instants, StepInstant, in_flight
from ...step.pipeline import PipelineStage
from ..deepspeed.layout import BUILD, SETUP, ZeroLayout
from ..megatron_lm.model_inputs import score_bytes
from ..megatron_lm.shards import local_vocab
from .walks import CODE, embedding_backward, rank_setting

FORK = "Megatron-DeepSpeed 6acc370a"
PIPE = "deepspeed 0.19.8 runtime/pipe/engine.py"
MASK = code(f"{FORK} pretrain_gpt.py:63-75, megatron/utils.py:181-221: boolean [1, 1, s, s]")
IDS_CODE = code(f"{FORK} pretrain_gpt.py get_batch, get_batch_pipe; {PIPE}:907")
FORWARD_CODE = code(f"{PIPE}:703")
ROTARY_CODE = code(f"{CODE}/model/rotary_pos_embedding.py:48-72, utils.py:39")
BUFFER_CODE = code(f"{CODE}/core/utils.py:70 GlobalMemoryBuffer, model/transformer.py:298")
MASKED_CODE = code(f"{CODE}/core/tensor_parallel/layers.py:199-211")
DROPOUT_CODE = code("torch 2.11 native_dropout keeps a boolean mask")
OUTPUT_CODE = code(f"{CODE}/model/language_model.py:255-262")
WAITS_CODE = code("torch 2.11 csrc/autograd/input_buffer.cpp")
Live = dict[str, Num]


def model_input_entries(
    run: Run, plan: ZeroLayout, stage: PipelineStage, instants: Instants, *, embedding_runs: bool
) -> Iterator[Entry]:
    """All entries of this module, at these instants.

    embedding_runs: the events of the embedding's backward are counted elsewhere, so it has no
      entries here
    """
    setting = rank_setting(run)
    always: Live = {b.name: 1 for b in instants}
    yield from _batch(run, plan, stage, instants)
    yield from _tables(run, setting, stage, always)
    yield from _embedding(run, setting, stage, instants)
    if not embedding_runs:
        yield from _embedding_backward(run, plan, instants)
    if plan.pipeline:
        yield from _logits(run, setting, stage, instants)
        yield from _between_stages(run, setting, stage, instants)


def at_work(instant: StepInstant) -> bool:
    """Whether a micro-batch runs at an instant."""
    return bool(instant.work) and instant.instant.where != "epilogue"


def _entry(name: str, kind: str, size: Bytes, live: Live, source: Source) -> Iterator[Entry]:
    if not nothing(size):
        yield Entry(name, kind, size, live, source)


def buffers(run: Run) -> Num:
    """How many micro-batches the PipelineEngine has buffers for: those in flight, but at least 2.

    runtime/pipe/schedule.py:247 TrainSchedule.num_pipe_buffers.
    """
    flight = in_flight(run.mesh.pp, run.stage, run.micro_batches)
    return smaller(larger(flight, 2), run.micro_batches)


def _batch(run: Run, plan: ZeroLayout, stage: PipelineStage, instants: Instants) -> Iterator[Entry]:
    """Ids, positions, labels and masks.

    The PipelineEngine copies a batch when it loads it, and that copy stays until the next batch
    takes its buffer (:907). It copies the batch again for forward (:703); the embedding saves ids
    and positions of the second copy. One more mask is an argument of the whole job.
    """
    tokens, mask = run.batch * run.seq, sized(run.seq * run.seq, 8)
    ids = "token ids, labels and loss mask"
    always: Live = {b.name: 1 for b in instants}
    if not plan.pipeline:
        yield from _entry(ids, ACT, sized(28 * tokens, 8), always, IDS_CODE)
        yield from _entry("attention mask", ACT, mask, always, MASK)
        return
    places = buffers(run)
    size = 16 * stage.first * (places + stage.flight) + 20 * stage.last * places
    loaded, copied = mask * places * stage.first, mask * stage.first
    running: Live = {b.name: 1 for b in instants if b.instant.phase == FORWARD and at_work(b)}
    yield from _entry(ids, ACT, sized(size * tokens, 8), always, IDS_CODE)
    yield from _entry("attention mask", RUNTIME, mask, always | {BUILD: 1, SETUP: 1}, MASK)
    yield from _entry("attention masks of loaded batches", ACT, loaded, always, MASK)
    yield from _entry("attention mask, copied for forward", ACT, copied, running, FORWARD_CODE)


def _tables(
    run: Run, setting: MegatronSetting, stage: PipelineStage, always: Live
) -> Iterator[Entry]:
    """Rotary tables, and the global buffer: baddbmm's input, and the gathered inputs."""
    mixers = [block.layer.mixer for block in stage.blocks]
    # frequencies in fp32; cosines and sines as the activations are
    size = sized(run.seq * rotary_width(mixers, latent=False), 32 + 2 * setting.bits)
    yield from _entry("rotary tables", RUNTIME, size, always, ROTARY_CODE)
    size = larger(score_bytes(setting, mixers), setting.full_bytes(setting.hidden))
    yield from _entry("global memory buffer", COMM, size, always, BUFFER_CODE)


def _embedding(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """The tensors that the embedding saves for each micro-batch in flight.

    A sequence-parallel rank's part is a view of the whole output, which stays alive with it unless
    dropout makes a new tensor (core/tensor_parallel/mappings.py _split_along_first_dim).
    """
    live: Live = {b.name: stage.flight * stage.first for b in instants if at_work(b)}
    masked = sized(9 * setting.tokens * holds(run.mesh.tp > 1), 8)
    yield from _entry("embedding: masked token ids", ACT, masked, live, MASKED_CODE)
    if run.arch.embedding_dropout:
        size = sized(setting.local_tokens * setting.hidden, 8)
        yield from _entry("embedding: dropout mask", ACT, size, live, DROPOUT_CODE)
    else:
        name = "embedding: output of the other ranks' tokens"
        rest = sized((setting.tokens - setting.local_tokens) * setting.hidden, setting.bits)
        yield from _entry(name, ACT, rest, live, OUTPUT_CODE)


def _embedding_backward(run: Run, plan: ZeroLayout, instants: Instants) -> Iterator[Entry]:
    """The embedding's backward as entries, where its events are not run.

    From the second micro-batch on, the head's gradient of a shared table waits for the embedding's.
    """
    now: Live = {b.name: 1 for b in instants if b.work == "embedding"}
    table = embedding_backward(run, plan.run)
    source = code(f"{CODE}/model/language_model.py:229-270, torch 2.11 Embedding.cu")
    made, work = table.words + table.positions, table.work + table.turning
    yield from _entry("embedding: gradient of its output", ACT, table.steps[-1], now, source)
    yield from _entry("embedding: gradients being computed", GRAD, made, now, source)
    yield from _entry("embedding: workspace", TEMP, work, now, source)
    back = [b for b in instants if b.later and b.instant.phase == BACKWARD]
    waits: Live = {b.name: 1 for b in back if b.work in ("layer", "embedding")}
    name = "head: gradient that waits for the embedding's"
    yield from _entry(name, GRAD, plan.table, waits, WAITS_CODE)


def _logits(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """fp32 logits, the last stage's output, alive until the next ones take their buffer.

    Their graph also holds the stage's input and its gradient, if another stage sent the input.
    """
    source = code(f"{PIPE}:750 pipe_buffers['outputs'], of which the last stage frees none")
    places = buffers(run)
    size = sized(setting.tokens * local_vocab(run), 32)
    live: Live = {b.name: places * stage.last for b in instants}
    yield from _entry("logits of earlier micro-batches, in fp32", ACT, size, live, source)
    alone = stage.last * (1 - stage.first)
    back = [b.name for b in instants if b.instant.phase == BACKWARD]
    back = [name for name in back if not name.endswith("epilogue")]
    live = {b.name: alone * (places - int(b.name in back)) for b in instants}
    size = sized(2 * setting.local_tokens * setting.hidden, setting.bits)
    yield from _entry("their inputs, and the gradients of those", ACT, size, live, source)


def _between_stages(
    run: Run, setting: MegatronSetting, stage: PipelineStage, instants: Instants
) -> Iterator[Entry]:
    """Tensors that stages send each other; one buffer receives activations and gradients (:1284).

    With tensor parallelism each rank sends its part, and a stage has whole outputs and gradients
    only while it runs backward (:713-745, :803-850; runtime/utils.py:665 PartitionedTensor). A
    checkpointed layer counts the gradient of its output among its own tensors.
    """
    if largest(run.mesh.pp) == 1:
        return
    whole = sized(setting.local_tokens * setting.hidden, setting.bits)
    parts = int(run.mesh.tp)
    before, after = 1 - stage.first, 1 - stage.last
    always: Live = {b.name: 1 for b in instants}
    working: Live = {b.name: stage.flight for b in instants if at_work(b)}
    counted = {b.name: _gradient_in_layer(stage, b) * after for b in instants}
    back: Live = {b.name: 1 for b in instants if at_work(b) and b.instant.phase == BACKWARD}
    less = {name: 1 - counted[name] for name in back}
    part = whole // parts
    received = always if parts > 1 else always | less
    rows = [("activations or gradients received", COMM, part, received, "1284")]
    if parts == 1:
        rows += [
            ("stage inputs", ACT, whole * before, working, "1128"),
            ("stage outputs", ACT, whole * after, working, "750"),
        ]
    else:
        rows += [
            ("stage outputs, this rank's part", ACT, part * after, working, "736"),
            ("stage output, whole", ACT, whole * after, back, "817"),
            ("received gradient, whole", COMM, whole * after, less, "833"),
        ]
    for name, kind, size, live, line in rows:
        yield from _entry(name, kind, size, live, code(f"{PIPE}:{line}"))


def _gradient_in_layer(stage: PipelineStage, instant: StepInstant) -> int:
    """1 where a checkpointed layer at work counts the gradient that another stage has sent."""
    top = instant.work == "layer" and instant.stretch == len(stage.blocks) - 1
    full = stage.blocks[-1].recompute == FULL
    return int(top and full and instant.instant.phase == BACKWARD and instant.instant.layer == LAST)
