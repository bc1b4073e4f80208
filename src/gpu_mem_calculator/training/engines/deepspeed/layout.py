"""The sizes and options of a run that every ZeRO stage needs, and the instants DeepSpeed adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import GPU, Entry, Instant, Ledger
from ....ledger.num import EMPTY, Bytes, Num, holds, larger, nothing, sized
from ....ledger.source import code
from ....run.phases import BACKWARD, OPTIMIZER, STARTUP
from ....run.run import Run
from ...optimizers import FUSED
from ...step.instants import Instants, StepInstant, in_flight, step
from ...step.layer_groups import LayerGroups
from . import sizes as zero
from .coordinator import GatherLimits
from .sizes import Group, ZeroSizes

BUILD, SETUP = "startup", "startup.optimizer"
STEP = (("optimizer.norm", "gradient norm"), ("optimizer.cast", "gradients cast to fp32"))


Runs = tuple[tuple[tuple[int, ...], Num], ...]  # elements of a unit's parameters, units


def listed(runs: Runs) -> Num:
    """Elements of some parameters."""
    return sum(sum(sizes) * units for sizes, units in runs)


def counted(runs: Runs) -> dict[int, Num]:
    """The number of parameters of each size."""
    counts: dict[int, Num] = {}
    for sizes, units in runs:
        for size in () if nothing(units) else sizes:
            counts[size] = counts.get(size, 0) + units
    return counts


class ZeroLayout(Struct, frozen=True, kw_only=True):
    """Sizes of one rank, with DeepSpeed's defaults (zero/config.py). `width`: bytes of a weight,
    `trained_width` of one that is trained; `counts`: trainable parameters by size.
    """

    run: Run
    stage: int
    width: int
    trained_width: int
    ranks: Num
    trainable: Num  # elements in this rank's model
    frozen: Num = 0
    runs: Runs  # trainable parameters in order
    counts: dict[int, Num]
    frozen_counts: dict[int, Num] = {}
    instants: Instants = ()
    bucket: int  # elements
    overlap: bool
    contiguous: bool = True
    offload: str  # where the optimizer is: none, cpu, nvme
    offload_param: str = "none"
    pinned: bool = False
    implementation: str = FUSED
    limits: GatherLimits = GatherLimits()  # stage 3: what decides which parameters are gathered
    sub_group: int = 1_000_000_000  # stage 3: elements that the optimizer steps at once
    zero_init: bool = True  # stage 3: the model is built under deepspeed.zero.Init
    pipeline: bool = False  # DeepSpeed's PipelineEngine runs the model
    layers: Num | None = None  # of the stage, where it is a pipeline
    first: Num = 1  # 1 where this rank has the embedding
    last: Num = 1  # 1 where it has the head
    one_stage: bool = False  # the PipelineEngine has one stage, and a tied table is one tensor
    apart: frozenset[int] = frozenset()  # sizes of parameters that are a second parameter group
    builds_head: bool = True  # transformers makes a head before it is tied to the embedding
    root_head: bool = False  # the model's own forward reads the head's weight

    @property
    def largest(self) -> Num:
        """Elements of the largest trainable parameter."""
        counts = self.counts.items()
        if not any(hasattr(count, "astype") for _, count in counts):
            return max(self.counts)
        has: list[Num] = [size * holds(count > 0) for size, count in counts]
        return reduce(larger, has)

    @property
    def table(self) -> Bytes:
        """Bytes of the head's gradient that waits for the embedding's, where both share a table.

        torch 2.11 csrc/autograd/input_buffer.cpp: a parameter's hook runs when all is added up.
        """
        run = self.run
        if not run.arch.tied or run.frozen or self.copied:
            return EMPTY
        return sized(run.arch.embedding[0].numel, 8 * self.width)

    @property
    def copied(self) -> bool:
        """Whether a tied head on another stage has a copy of the table."""
        return self.pipeline and not self.one_stage

    @property
    def bf16_optimizer(self) -> bool:
        """Whether BF16_Optimizer steps a stage of a pipeline, where there is no ZeRO."""
        return self.pipeline and self.run.precision == "bf16_mixed"

    @property
    def parameter_groups(self) -> tuple[Runs, ...]:
        """The trained parameters of each of the optimizer's groups, in order."""
        if not self.apart:
            return (self.runs,)
        chosen = ((lambda n: n not in self.apart), (lambda n: n in self.apart))
        return tuple(
            tuple((tuple(filter(belongs, sizes)), units) for sizes, units in self.runs)
            for belongs in chosen
        )

    @property
    def groups(self) -> list[Group]:
        """What this rank has of each parameter group."""
        if self.stage == 3:
            return [zero.sharded_group(self.trainable, self.counts, self.ranks)]
        parts = [listed(runs) for runs in self.parameter_groups[1:]]
        parts = [self.trainable - sum(parts), *parts]
        if self.stage or self.bf16_optimizer:
            return [zero.sliced_group(part, self.ranks) for part in parts]
        return [zero.replicated_group(part) for part in parts]

    @property
    def sizes(self) -> ZeroSizes:
        """Bytes of the states that this rank trains."""
        return zero.zero_sizes(
            self.groups,
            width=self.trained_width,
            largest=self.largest,
            optimizer=self.run.optimizer,
            implementation=self.implementation,
        )

    @property
    def slice_gradient_instants(self) -> tuple[str, ...]:
        """The step's instants at which the slice's 16-bit gradients are alive.

        Those of two parameter groups share a buffer, which is freed when the second has stepped.
        """
        cast = ("optimizer.norm", "optimizer.cast")
        return (*cast, "optimizer") if self.apart else cast

    @property
    def bucket_bytes(self) -> Bytes:
        """Bytes of a bucket in which gradients of a micro-batch are collected
        (zero/stage_1_and_2.py:3256).
        """
        return sized(self.bucket, 8 * self.width)

    @property
    def states_name(self) -> str:
        """The name of the optimizer states' entry."""
        return f"{self.run.optimizer} states"

    def entry(
        self,
        name: str,
        kind: str,
        size: Bytes,
        live: Callable[[StepInstant], Num],
        source: str,
        startup: tuple[str, ...] = (),
        place: str = GPU,
    ) -> Entry:
        """An entry with `live` copies at each instant, and one at those named in `startup`."""
        copies = ((b.name, live(b)) for b in self.instants)
        alive: dict[str, Num] = {name: n for name, n in copies if not isinstance(n, int) or n}
        alive |= dict.fromkeys(startup, 1)
        return Entry(name, kind, size, alive, code(f"deepspeed 0.19.8 {source}"), place=place)

    def ledger(self, entries: Iterable[Entry]) -> Ledger:
        """The ledger with these entries at start-up and the instants of the step."""
        instants = (*startup_instants(), *(b.instant for b in self.instants))
        return Ledger(instants, tuple(entries))


def stage_instants(plan: ZeroLayout, stack: LayerGroups) -> Instants:
    """The instants of a step on this rank, without DeepSpeed's own."""
    run = plan.run
    return step(
        tuple(group.stretch for group in stack),
        micro_batches=run.micro_batches,
        head=plan.last,
        embedding=plan.first,
        flight=in_flight(run.mesh.pp, run.stage, run.micro_batches),
        every=run.unrolled,
    )


def always(instant: StepInstant) -> Num:
    """One copy at every instant of a step."""
    return 1


def never(instant: StepInstant) -> Num:
    """No copy during a step."""
    return 0


def named(*names: str) -> Callable[[StepInstant], Num]:
    """One copy at the instants of these names, in later micro-batches too, but not at those that
    only the first step has.
    """
    return lambda instant: int(instant.instant.where in names and not instant.instant.step)


def in_bucket(instant: StepInstant) -> bool:
    """Whether the gradient bucket, which the first gradient of backward makes, is alive."""
    return instant.instant.phase == BACKWARD and instant.instant.where != "loss.backward"


def startup_instants() -> tuple[Instant, ...]:
    """The instants while the engine is built: parameters are flattened or sharded, then the
    optimizer's copies are made.
    """
    return (
        Instant(name=BUILD, phase=STARTUP, title="start-up: parameters laid out"),
        Instant(name=SETUP, phase=STARTUP, title="start-up: optimizer set up"),
    )


def with_hooks(instants: Instants, *, head: bool) -> Instants:
    """The instants of a step, with those at which DeepSpeed works on gradients.

    `head.gradient`: the first gradient of backward, if `head`; `epilogue`: gradients are reduced;
    then the norm, the cast of the gradients and the update.
    """
    hooked: list[StepInstant] = []
    end = instants[-1]
    runs: dict[str, Num] = {}  # 1 if a first, or a later, micro-batch runs backward on this rank
    for instant in instants:
        if instant.work and instant.instant.phase == BACKWARD:
            tag = instant.instant.micro_batch
            runs[tag] = larger(runs.get(tag, 0), instant.instant.present)
    for instant in instants:
        tag, where = instant.instant.micro_batch, instant.instant.where
        if where == "optimizer":
            hooked += (_hook_instant(instant, name, OPTIMIZER, title) for name, title in STEP)
        hooked.append(instant)
        if where == "loss.backward" and head:
            first = _hook_instant(instant, "head.gradient", BACKWARD, "first gradient")
            hooked.append(replace(first, head_grads=end.head_grads))
        if where == "embedding.backward":
            epilogue = _hook_instant(instant, "epilogue", BACKWARD, "gradients reduced")
            present = replace(epilogue.instant, present=runs[tag])
            hooked.append(replace(epilogue, instant=present, embedding_grads=end.embedding_grads))
    return tuple(hooked)


def _hook_instant(base: StepInstant, where: str, phase: str, title: str) -> StepInstant:
    """An instant of the same micro-batch at which a hook of DeepSpeed works, or the step."""
    word = ", later micro-batch" if base.instant.micro_batch else ""
    moved = base.instant.moved(where, phase=phase, title=title + word)
    return replace(base, instant=moved, work="hook" if phase == BACKWARD else "")
