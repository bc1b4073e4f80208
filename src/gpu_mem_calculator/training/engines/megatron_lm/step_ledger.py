"""The ledger of a stage of Megatron-LM at the moments of its schedule that may have the peak.

For its stream, the allocations of start-up and, where stages are interleaved, every pass of every
chunk in the order of the schedule (megatron-core 0.19.2 pipeline_parallel/schedules.py:992); cuBLAS
workspaces, torch's and Transformer Engine's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import RUNTIME, Entry, Ledger
from ....ledger.num import Bytes, Num, nothing, sized
from ....ledger.remember import Same, remembered
from ....ledger.source import code
from ....ledger.units import MIB
from ....models.arch.blocks import Moe
from ....pytorch.autograd.events import BlockEvents, EventRecorder
from ....run.phases import BACKWARD, FORWARD, STARTUP
from ....run.run import Run
from ...losses import DEFAULT as OWN_LOSS
from ...step.block_events import HEAD, BlockRun, block_runs
from ...step.chunks import schedule
from ...step.instants import Instants
from ...step.pipeline import PipelineStage, pipeline_stage, pipeline_stages
from ...step.pipeline import beats as stage_instants
from ...step.stream_phases import Phase
from ...step.stream_writer import StreamWriter
from ...step.workspaces import workspace_entries
from .activations import head_entries, layer_entries
from .model_inputs import embedding_steps, model_input_entries
from .options import OF_STATES, bits, distributed, engine_version, fused, gradient_bits, option
from .options import setting as megatron_setting
from .parameters import stage_tensors, stepped_parameters
from .states import STARTUP_INSTANTS, stage_shard, state_entries, with_experts
from .stream import PipelineStreamWriter, clipped_gradients
from .walks import head_of_loss
from .walks import walks as walk_stage


class Schedule(Struct, frozen=True):
    """What decides the order of a stage's stream besides its ledger.

    - flight: micro-batches in flight, of interleaved stages passes
    - front: tensors that the embedding makes before its output
    - chunks: the blocks of each chunk, of interleaved stages; group: micro-batches that run through
      a chunk before the next one; last: the stage has the loss
    """

    flight: int
    front: int
    chunks: tuple[tuple[int, ...], ...] = ()
    group: int = 0
    last: bool = False

    def writer(self, ledger: Ledger) -> StreamWriter:
        """The writer of the stage's stream."""
        if self.chunks:
            return InterleavedStreamWriter(ledger, self)
        return PipelineStreamWriter(ledger, self.flight, self.front)


def with_writer(ledger: Ledger, run: Run, stage: PipelineStage) -> Ledger:
    """An unrolled ledger with what its stage's stream is written by."""
    front = embedding_steps(run)[:-1] if stage.first else ()
    own, flight = (*front, *clipped_gradients(run)), int(stage.flight)
    schedule = Schedule(flight, len(front))
    if run.virtual_stages > 1:
        group = int(run.micro_batch_group or run.mesh.pp)
        schedule = Schedule(flight, len(front), stage.chunks, group, bool(stage.last))
    return replace(ledger, writer=schedule.writer, own=own, schedule=schedule)


def _of_stage(ledger: Ledger, stage: PipelineStage, instants: Instants) -> Ledger:
    """The ledger without what the head and the embedding of other stages have."""
    others = {"head": not stage.last, "embedding": not stage.first}
    absent = {i.name for i in instants if others.get(i.work)}
    plays = {name: play for name, play in ledger.plays.items() if name not in absent}
    entries = (e for e in ledger.entries if any(e.live[name] for name in {*e.live} - absent))
    return replace(ledger, plays=plays, entries=tuple(entries))


class InterleavedStreamWriter(PipelineStreamWriter):
    """Writes warm-up forwards, then one forward and one backward in turn, then the backwards left;
    a pass is one micro-batch's through one chunk.

    Its ledger has an instant for each of the stage's blocks, at the highest moment of the schedule.
    """

    def __init__(self, ledger: Ledger, schedule: Schedule) -> None:
        super().__init__(ledger, schedule.flight, schedule.front)
        self.schedule = schedule
        self.passes: list[int] = []  # in flight, the oldest first
        entries = [(i, entry) for i, entry in enumerate(self.entries) if int(entry.bytes)]
        for name in (i.name for i in ledger.instants if not i.present):  # of other chunks
            alive = {i: int(entry.live.get(name, 0)) for i, entry in entries}
            self.alive[name] = {i: copies for i, copies in alive.items() if copies}

    def directions(self, step: list[Phase], micro_batches: int) -> tuple[list[Phase], list[Phase]]:
        """The forward and the backward passes of all chunks, each in their order."""
        name = step[0].title.partition(".")[0]
        rest = [one for one in step[1].names if one not in self.plays]  # behind the first layer's
        chunks = len(self.schedule.chunks)
        table = schedule(micro_batches, chunks, self.schedule.group)
        numbers = {one: number for number, one in enumerate(table)}
        back = [(chunks - 1 - chunk, batch) for chunk, batch in table]
        ahead, behind = (self._names(forward=forward) for forward in (True, False))
        behind[0] += rest
        forward = [
            Phase(f"{name}.a{n}.fwd", ahead[chunk], FORWARD, n)
            for n, (chunk, _) in enumerate(table)
        ]
        backward = [
            Phase(f"{name}.a{numbers[one]}.bwd", behind[one[0]], BACKWARD, numbers[one])
            for one in back
        ]
        return forward, backward

    def _names(self, *, forward: bool) -> list[list[str]]:
        """The instants of each chunk's blocks in one direction."""
        name_of = {play.block: n for n, play in self.plays.items() if play.forward == forward}
        *earlier, last = self.schedule.chunks
        blocks = (*earlier, (*last, HEAD) if self.schedule.last else last)
        return [[name_of[i] for i in (one if forward else one[::-1])] for one in blocks]

    def begin(self, phase: Phase) -> None:
        """A pass begins its forward, or its backward."""
        super().begin(phase)
        if phase.kind == FORWARD:
            self.passes.append(phase.micro_batch)
        elif phase.kind == BACKWARD:  # it becomes the first of those in flight
            at = self.passes.index(phase.micro_batch)
            del self.passes[at]
            self.waiting_blocks.insert(0, self.waiting_blocks.pop(at))
            self.kept = self.waiting_blocks[0]
            self.passes.insert(0, phase.micro_batch)

    def mark(self, phase: Phase) -> None:
        """A pass ends."""
        if phase.kind == BACKWARD:
            del self.passes[0]
        super().mark(phase)


STARTUP_BLOCK = -3  # a number that no layer has, nor head or embedding


def startup_events(run: Run) -> BlockEvents:
    """Allocations and frees from the first parameter to the last main weight; what is not freed
    stays until the end.
    """
    recorder = EventRecorder()
    _record_buffers(run, recorder, _record_weights(run, recorder))
    if bits(run) < 32:
        for _, elements in stepped_parameters(run):  # optimizer.py:1012 `clone().float()`
            narrow = recorder.make(sized(elements, bits(run)))
            recorder.make(sized(elements, 32))
            recorder.free(narrow)
    sizes, events = tuple(recorder.sizes), tuple(recorder.events)
    return BlockEvents(sizes=sizes, entry=-1, exit=-1, forward=events)


def _record_weights(run: Run, recorder: EventRecorder) -> list[int]:
    """Each chunk is built, moved to the GPU and cast, which norms and learnt positions need.
    Returns the tensors of the weights.
    """
    parameters = list(enumerate(stage_tensors(run)))
    width, tensors = bits(run), [-1] * len(parameters)
    for chunk in range(int(run.virtual_stages)):
        in_chunk = [(i, parameter) for i, parameter in parameters if parameter.chunk == chunk]
        for moved in (False, True):
            for i, parameter in in_chunk:
                if parameter.moved == moved:
                    tensors[i] = recorder.make(sized(parameter.elements, 32 if moved else width))
        for i, parameter in in_chunk:
            if parameter.moved and width < 32:
                old, tensors[i] = tensors[i], recorder.make(sized(parameter.elements, width))
                recorder.free(old)
    return tensors


def _record_buffers(run: Run, recorder: EventRecorder, weights: list[int]) -> None:
    """Each chunk's gradient buffers, one of the dense parameters and one of the experts.

    With the distributed optimizer also buffers of weights, which then leave their own tensors
    (distributed/param_and_grad_buffer.py:1160-1260).
    """
    width, grad_width, split = bits(run), gradient_bits(run), distributed(run)
    parameters = list(enumerate(stage_tensors(run)))
    for chunk in range(int(run.virtual_stages)):
        for expert in (False, True):
            buffered = [(i, p) for i, p in parameters if p.chunk == chunk and p.expert == expert]
            total = sum(parameter.elements for _, parameter in buffered)
            for element_bits in (width, grad_width) if split else (grad_width,):
                if total:
                    recorder.make(sized(total, element_bits))
            for i, _ in buffered[::-1] if split else ():
                recorder.free(weights[i])


GROUPED_STREAMS = 4  # common/util/cuda_runtime: nvte_get_num_compute_streams
ENGINE_CODE = code("Transformer Engine 2.18 pytorch/cpp_extensions/gemm.py:35-62")


def stage_workspaces(run: Run, stage: PipelineStage, instants: Instants) -> Iterator[Entry]:
    """torch's workspaces where torch runs a matmul, and Transformer Engine's.

    With Transformer Engine's layers torch runs the output layer, routers and unfused attention
    (tensor_parallel/layers.py, moe/router.py); the other matmuls share one workspace, and grouped
    ones of experts have another for each of their streams.
    """
    if not fused(run):
        yield from workspace_entries(run, instants)
        return
    routed = any(isinstance(group.layer.mlp, Moe) for group in stage.blocks)
    by_torch = routed or bits(run) == 32 or option(run, "attention_backend") == "unfused"
    here = 1 if by_torch else stage.last
    for entry in () if nothing(here) else workspace_entries(run, instants):
        yield replace(entry, live={name: copies * here for name, copies in entry.live.items()})
    size, count = engine_bytes(run), 1 + GROUPED_STREAMS * routed
    each: list[Bytes] = [size] * count
    name, live = "Transformer Engine's cuBLAS workspaces", {i.name: 1 for i in instants}
    yield Entry(name, RUNTIME, size * count, live, ENGINE_CODE, tensors=lambda: each)


def engine_bytes(run: Run) -> Bytes:
    """Bytes of one of Transformer Engine's workspaces: 32 MiB from Hopper on and 4 MiB before;
    1 KiB more since version 2.8, for NVFP4.
    """
    if float(run.compute_capability) < 9.0:
        return 4 * MIB
    return 32 * MIB + Bytes(1024 * (engine_version(run) >= (2, 8, 0)))


def ledgers(run: Run) -> list[Ledger]:
    """The ledger of one rank at each moment of its schedule that may have the peak."""
    return [_stage_ledger(run, stage) for stage in pipeline_stages(run)]


def ledger(run: Run) -> Ledger:
    """The ledger of one rank of the run's pipeline stage, at the highest moment of its schedule."""
    stages = pipeline_stages(run)
    if len(stages) == 1:
        return _stage_ledger(run, stages[0])
    rolled = ledgers(replace(run, unrolled=False))
    peaks = [int(one.peak()) for one in rolled]
    highest = peaks.index(max(peaks))
    return _stage_ledger(run, stages[highest]) if run.unrolled else rolled[highest]


def _stage_ledger(run: Run, stage: PipelineStage) -> Ledger:
    """The ledger of a stage at one moment. Rolled runs that differ in their loss, or in their
    optimizer alone, have groups of entries in common.
    """
    instants = _instants(run, Same(stage))
    states = replace(run, loss=OWN_LOSS, sequence_parallel=False)
    options = {key: value for key, value in run.options.items() if key not in OF_STATES}
    layers = replace(run, loss=OWN_LOSS, options=options)
    groups = (
        _states(states, Same(stage), Same(instants)),
        _layers(layers, Same(stage), Same(instants)),
        _head(replace(run, options=options), Same(stage), Same(instants)),
        _beside(layers, Same(stage), Same(instants)),
    )
    runs = {}
    if run.unrolled:
        runs = block_runs(stage.blocks, instants, walk_stage(run, stage))
        startup = BlockRun(block=STARTUP_BLOCK, script=startup_events(run), forward=True)
        runs[STARTUP_INSTANTS[0][0]] = startup
    entries = tuple(entry for group in groups for entry in group)
    named = tuple(i.instant for i in instants)
    if run.unrolled:
        return with_writer(_of_stage(Ledger(named, entries, runs), stage, instants), run, stage)
    return Ledger(named, entries, groups=(groups[0], groups[1], groups[3]))


Entries = tuple[Entry, ...]


def _instants(run: Run, stage: Same[PipelineStage]) -> Instants:
    experts = any(isinstance(layer.mlp, Moe) for layer in run.arch.layers)
    return _stage_instants(stage, run.unrolled, experts)


@remembered(3, always=True)
def _stage_instants(stage: Same[PipelineStage], every: bool, experts: bool) -> Instants:
    instants = stage_instants(stage.value, STARTUP_INSTANTS, every=every)
    return with_experts(instants) if experts else instants


@remembered(3)
def _states(run: Run, stage: Same[PipelineStage], instants: Same[Instants]) -> Entries:
    return tuple(state_entries(run, stage.value, instants.value))


@remembered(3)
def _layers(run: Run, stage: Same[PipelineStage], instants: Same[Instants]) -> Entries:
    walks = walk_stage(run, stage.value)
    return tuple(layer_entries(run, stage.value, instants.value, walks))


def _head(run: Run, stage: Same[PipelineStage], instants: Same[Instants]) -> Entries:
    return tuple(head_entries(run, stage.value, instants.value, *head_of_loss(run)))


@remembered(3)
def _beside(run: Run, stage: Same[PipelineStage], instants: Same[Instants]) -> Entries:
    """Embedding, micro-batches in flight, buffers that stay, workspaces."""
    setting = megatron_setting(run, selective=False)
    in_step = tuple(i for i in instants.value if i.instant.phase != STARTUP)
    return (
        *model_input_entries(run, setting, stage.value, instants.value),
        *stage_workspaces(run, stage.value, in_step),
    )


def parameters(run: Run) -> Num:
    """Elements of the parameters on this rank."""
    return stage_shard(run, pipeline_stage(run)).total
