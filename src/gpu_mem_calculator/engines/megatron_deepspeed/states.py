"""ZeRO's flat cuts of a Megatron rank: what DeepSpeed does with parameters that are cut already.

DeepSpeed 0.19.8. Every stage sees the rank's own parameters; data parallelism cuts them flat,
experts over the ranks that repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import COMM, CPU, GPU, GRAD, OPTIM, PARAM, TEMP, Entry, instant
from ...ledger.num import Num, choose, holds, larger, smaller
from ...ledger.source import code
from ...model.arch import Layer
from ...run.phases import BACKWARD, FORWARD, OPTIMIZER
from ...run.run import Run
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup
from ...step.optimizers import OPTIMIZERS, state_bytes, step_temp_bytes
from ..deepspeed.shards import padded, slice_elements
from ..megatron_lm.parameters import layer_tensors, stage_tensors
from ..megatron_lm.shards import MegatronShard

STARTUP_BEATS = (
    ("startup", "parameters are laid out"),
    ("startup.optimizer", "optimizer is set up"),
)
SUB_GROUP = 1_000_000_000  # elements of a stage-3 sub-group: zero/config.py sub_group_size
LIVE = 1_000_000_000  # stage3_max_live_parameters


class ShardedStates(Struct, frozen=True, kw_only=True):
    """One rank's sizes. `width`: bytes of a weight; `slice`: elements of its part of the rest."""

    run: Run
    stage: int
    width: int
    shard: MegatronShard
    beats: tuple[StepInstant, ...]
    bucket: int
    overlap: bool
    offload: bool
    implementation: str
    ends: frozenset[str]  # beats at which a stretch of layers ends its backward

    @property
    def slice(self) -> Num:
        """Elements that this rank steps."""
        mesh, shard = self.run.mesh, self.shard
        return slice_elements(shard.dense, mesh.dp) + slice_elements(
            shard.experts, mesh.dp // mesh.ep
        )

    @property
    def whole(self) -> Num:
        """Elements of the flat 16-bit copy, with its padding."""
        mesh, shard = self.run.mesh, self.shard
        return padded(shard.dense, mesh.dp) + padded(shard.experts, mesh.dp // mesh.ep)

    def entry(
        self, name: str, kind: str, size: Num, live: dict[str, Num], where: str, place: str = GPU,
        tensors: Callable[[], Iterable[Num]] | None = None,
    ) -> Entry:  # fmt: skip
        """An entry with DeepSpeed's line as its source."""
        return Entry(name=name, kind=kind, bytes=size, live=live, place=place, tensors=tensors,
                     source=code(f"deepspeed 0.19.8 runtime/{where}"))  # fmt: skip

    def weights(self) -> list[int]:
        """Bytes of each parameter of the rank."""
        return [t.elements * self.width for t in stage_tensors(self.run)]

    def states(self, elements: Num) -> Callable[[], list[Num]]:
        """Bytes of each state of flat fp32 parameters: one flat tensor a state."""
        return lambda: [4 * elements] * OPTIMIZERS[self.run.optimizer].states

    def during(self, *phases: str) -> dict[str, Num]:
        """Alive in some phases of a step."""
        return {b.name: 1 for b in self.beats if b.instant.phase in phases}

    @property
    def always(self) -> dict[str, Num]:
        """Alive at every instant of a step."""
        return self.during(FORWARD, BACKWARD, OPTIMIZER)


def with_epilogue(beats: tuple[StepInstant, ...]) -> tuple[StepInstant, ...]:
    """The same beats, with the moment after backward at which gradients are reduced."""
    end = beats[-1]
    made = instant("epilogue", BACKWARD, "gradients reduced")
    return (*beats[:-1], replace(end, instant=made), end)


def zero_entries(cut: ShardedStates) -> Iterator[Entry]:
    """Weights, gradients, masters and states of any stage."""
    if cut.stage == 0:
        yield from _whole_entries(cut)
    else:
        yield from _weight_entries(cut)
        yield from _slice_entries(cut)
        yield from _gradient_entries(cut)


def kept_gradients(
    cut: ShardedStates, layers: tuple[tuple[LayerGroup, Num, Num], ...], embedding: Num, head: Num
) -> Iterator[Entry]:
    """Gradients of every parameter that stay until they are reduced: stages 0 and 1.

    They appear layer by layer in the first micro-batch and are there from then on. `layers`:
    equal layers, elements of one, layers held.
    """
    if cut.stage > 1:
        return
    many = holds(cut.run.micro_batches > 1)
    names = [b for b in cut.beats if b.instant.phase in (FORWARD, BACKWARD)]
    last = [b.name for b in cut.beats if b.instant.phase == OPTIMIZER and cut.stage == 0]
    for index, (block, elements, held) in enumerate(layers):
        live: dict[str, Num] = {b.name: choose(many, held, b.grads[index]) for b in names}
        yield cut.entry(
            f"{block.title}: gradients", GRAD, elements * cut.width,
            live | dict.fromkeys(last, held), "zero/stage_1_and_2.py:2289",
            tensors=partial(_gradients, cut, block.layer),
        )  # fmt: skip
    ends = (("embedding", embedding, "embedding_grads"), ("head", head, "head_grads"))
    for title, elements, pick in ends:
        live = {b.name: choose(many, 1, getattr(b, pick)) for b in names}
        yield cut.entry(f"{title}: gradients", GRAD, elements * cut.width,
                        live | dict.fromkeys(last, 1), "zero/stage_1_and_2.py:2289")  # fmt: skip


def _gradients(cut: ShardedStates, layer: Layer) -> list[int]:
    """Bytes of each gradient of a layer, from its last parameter to its first."""
    return [t.elements * cut.width for t in layer_tensors(cut.run, layer)][::-1]


def _whole_entries(cut: ShardedStates) -> Iterator[Entry]:
    """Stage 0: FP16_Optimizer's whole copies; with bf16 in a pipeline BF16_Optimizer's slices."""
    count, row = cut.shard.total, OPTIMIZERS[cut.run.optimizer]
    start = dict.fromkeys((name for name, _ in STARTUP_BEATS), 1)
    yield cut.entry("parameters", PARAM, count * cut.width, cut.always | start,
                    "engine.py:2091", tensors=cut.weights)  # fmt: skip
    if cut.width == 4:
        yield cut.entry(f"{cut.run.optimizer} states", OPTIM, state_bytes(row, count, 32),
                        cut.always, "engine.py:2314", tensors=cut.states(count))  # fmt: skip
        return
    piped = holds(cut.run.mesh.pp > 1) if cut.run.precision == "bf16_mixed" else 0
    mine = choose(piped, cut.slice, count)
    where = "bf16_optimizer.py:160-191, fp16/fused_optimizer.py:94-135"
    yield cut.entry("fp32 master weights", OPTIM, 4 * mine, cut.always | start, where)
    yield cut.entry(f"{cut.run.optimizer} states", OPTIM, state_bytes(row, mine, 32),
                    cut.always | start, where, tensors=cut.states(mine))  # fmt: skip
    yield cut.entry("gradient buffer of the whole stage", GRAD, piped * cut.width * count,
                    cut.always | start, "bf16_optimizer.py:191")  # fmt: skip
    step = cut.during(OPTIMIZER)
    yield cut.entry("fp32 gradients", GRAD, choose(piped, 4 * mine, 8 * count), step,
                    "fp16/fused_optimizer.py:285-314, bf16_optimizer.py:417")  # fmt: skip
    yield cut.entry("gradients, flat copy for all-reduce", COMM,
                    (1 - piped) * holds(cut.run.mesh.dp > 1) * cut.width
                    * smaller(count, 500_000_000 + cut.shard.largest),
                    {"epilogue": 1}, "engine.py:3795")  # fmt: skip


def _weight_entries(cut: ShardedStates) -> Iterator[Entry]:
    """The 16-bit weights: a flat copy of all, or in stage 3 a slice and what is gathered."""
    names = [name for name, _ in STARTUP_BEATS]
    if cut.stage < 3:
        yield cut.entry("parameters before flattening", PARAM, cut.shard.total * cut.width,
                        {names[0]: 1}, "zero/stage_1_and_2.py:449",
                        tensors=cut.weights)  # fmt: skip
        yield cut.entry("parameters", PARAM, cut.whole * cut.width,
                        cut.always | dict.fromkeys(names, 1),
                        "zero/stage_1_and_2.py:441")  # fmt: skip
        return
    yield cut.entry("parameter shards", PARAM, cut.slice * cut.width,
                    cut.always | dict.fromkeys(names, 1), "zero/stage3.py:972")  # fmt: skip
    yield cut.entry("largest parameter, whole", PARAM, cut.shard.largest * cut.width,
                    dict.fromkeys(names, 1), "zero/partition_parameters.py:1242")  # fmt: skip
    live = smaller(cut.shard.total, LIVE + cut.shard.largest)
    yield cut.entry("gathered parameters", PARAM, live * cut.width, cut.during(FORWARD, BACKWARD),
                    "zero/partitioned_param_coordinator.py:355-537")  # fmt: skip


def _slice_entries(cut: ShardedStates) -> Iterator[Entry]:
    """Masters, states and the step's fp32 gradients of the slice, on the GPU or offloaded."""
    mine, run = cut.slice, cut.run
    place = CPU if cut.offload else GPU
    where = "zero/stage3.py:1157" if cut.stage == 3 else "zero/stage_1_and_2.py:560"
    yield cut.entry("fp32 master weights", OPTIM, 4 * mine,
                    cut.always | {STARTUP_BEATS[1][0]: 1}, where, place)  # fmt: skip
    yield cut.entry(f"{run.optimizer} states", OPTIM,
                    state_bytes(OPTIMIZERS[run.optimizer], mine, 32), cut.always,
                    "../ops/adam/fused_adam.py:155", place, tensors=cut.states(mine))  # fmt: skip
    step = cut.during(OPTIMIZER)
    if cut.offload:
        host = cut.always | {STARTUP_BEATS[1][0]: 1}
        yield cut.entry("fp32 gradients", GRAD, 4 * mine, host, where, CPU)
        yield cut.entry("16-bit weights, staged", COMM, cut.width * mine, host,
                        "zero/stage_1_and_2.py:567", CPU)  # fmt: skip
        yield cut.entry("gradient staging for offload", COMM, cut.width * cut.shard.largest,
                        host, "zero/stage_1_and_2.py:653")  # fmt: skip
        return
    yield cut.entry("fp32 gradients at start-up", GRAD, 4 * mine, {STARTUP_BEATS[1][0]: 1}, where)
    group = smaller(mine, SUB_GROUP) if cut.stage == 3 else mine
    flat = (4 + (2 if cut.width == 2 else 0)) * group
    norm = 8 * smaller(cut.shard.largest, mine)
    yield cut.entry("gradients, flat and fp32, or their norm in fp64", TEMP, larger(flat, norm),
                    step, "zero/stage_1_and_2.py:2684,3103")  # fmt: skip
    temp = step_temp_bytes(OPTIMIZERS[run.optimizer], cut.implementation, group, group, 32)
    yield cut.entry("optimizer temporaries", TEMP, temp, step, "engine.py:2380")


def _gradient_entries(cut: ShardedStates) -> Iterator[Entry]:
    """The slice's 16-bit gradients and the bucket they travel in."""
    size, run = cut.width * cut.slice, cut.run
    bucket = cut.width * cut.bucket * (2 if cut.overlap and cut.stage < 3 else 1)
    back = cut.during(BACKWARD)
    if cut.stage == 3:
        yield cut.entry("gradient shards", GRAD, size, cut.always, "zero/stage3.py:791")
        yield cut.entry("gradient bucket", COMM, bucket, cut.always, "zero/stage3.py:779")
    else:
        many = holds(run.micro_batches > 1)
        summed = dict.fromkeys(cut.during(FORWARD, BACKWARD), many if cut.stage == 2 else 0)
        own = summed | cut.during(OPTIMIZER) | {"epilogue": 1 + summed["epilogue"]}
        live = own if not cut.offload else {}
        yield cut.entry("gradients of the slice", GRAD, size, live, "zero/stage_1_and_2.py:2183")
        stays = dict.fromkeys(cut.during(FORWARD), many if cut.stage == 1 else 0)
        there = {n: c for n, c in back.items() if n != "loss.backward"}
        yield cut.entry("gradient bucket", COMM, bucket, stays | there,
                        "zero/stage_1_and_2.py:3256")  # fmt: skip
    flush = {b.name: 1 for b in cut.beats if b.instant.where == "epilogue"
             or (cut.stage > 1 and b.name in cut.ends)}  # fmt: skip
    flat = cut.width * smaller(cut.bucket, cut.shard.total)
    yield cut.entry("bucket, flat copy for reduction", COMM, flat, flush,
                    "zero/stage_1_and_2.py:1555")  # fmt: skip
