"""How long a training step takes on the slowest rank, and how far a measured one may be from that.

What a rank's layers take is remembered by what it depends on, so that runs which differ in other
things share it: in their optimizer, in what data-parallel ranks shard, in their pipeline.

80 % of measured steps should lie between `low` and `high`. Their factors come from measured steps
over their estimates (docs/timing.md): at least the range of the middle 90 % of one half of the
rows, with the same weight for every source, because an unseen run is of a new source. One step of
experts on layers of Megatron's own, three times its estimate, is left out.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import Num, larger, smaller
from ...ledger.remember import Same, remembered
from ...models.arch.blocks import Moe
from ...run.ranks import distinct_ranks, single_ranks, spread, stacked
from ...run.recompute import EVERYTHING, NONE
from ...run.run import DEFAULT_OPTIMIZER, Run
from ...training.engines import engine_row
from ...training.losses import DEFAULT as OWN_LOSS
from ..curves.machine import Machine
from .communication import LayerCollectives, end_collectives, layer_collectives, sent_seconds
from .compute import (
    BlockSeconds,
    both_ends,
    embedding_seconds,
    head_seconds,
    layer_seconds,
    recomputed_share,
    runs_scores,
)
from .estimates import SLOWEST_HOST
from .host import host_seconds
from .operators import EqualLayers, layer_kinds
from .optimizer import offload_seconds, offloaded, optimizer_seconds
from .parameters import RankParameters, rank_parameters
from .pipeline import Stages, bubble, sent, slowest, stages, weighted
from .step_seconds import Seconds, StepSeconds, difference, summed
from .synchronization import (
    Passes,
    Synchronization,
    accumulation_seconds,
    copy_seconds,
    exposed_seconds,
    synchronization,
)

EXPERTS, ADAPTERS = "experts", "adapters"
# class -> (low, high) as factors of the estimate. Megatron-LM: run files often leave out which
# collectives overlap; without these keys the estimate is up to 16 % too long.
FACTORS: dict[str, tuple[float, float]] = {
    "PyTorch": (0.87, 1.3),
    "FSDP": (0.93, 1.55),
    "DeepSpeed": (0.9, 1.5),
    "Megatron-LM": (0.84, 1.3),
    "Megatron-DeepSpeed": (0.88, 1.25),
    ADAPTERS: (0.7, 1.55),
    EXPERTS: (0.88, 1.8),
}


def interval_class(run: Run, engine: str) -> str:
    """The class of a run: what it trains, then its engine."""
    if any(isinstance(layer.mlp, Moe) for layer, _, _ in run.arch.runs):
        return EXPERTS
    return ADAPTERS if run.frozen else engine_row(engine).interval


def interval_factors(run: Run, engine: str) -> tuple[float, float]:
    """(low, high) as factors of the estimated seconds of a step."""
    return FACTORS[interval_class(run, engine)]


# Fields of a run on which no kernel of a layer and no collective inside it depends, and options of
# engines; the mesh's dp and pp are others.
UNREAD: dict[str, Any] = {
    "micro_batches": 1,
    "optimizer": DEFAULT_OPTIMIZER,
    "implementation": "",
    "embedding_states_32bit": False,
    "clipping": True,
    "evaluation": None,
    "generates": None,
    "saving": False,
    "zero_grad": "after_step",
    "recompute_quarters": 4,
    "stage": 0,
    "virtual_stages": 1,
    "stage_counts": (),
    "ends_counted": (0, 0),
    "micro_batch_group": 0,
    "unrolled": False,
    "num_nodes": 1,
    "stored": (),
    "stored_form": "",
    "rollout": None,
    "draft": None,
}
UNREAD_OPTIONS = frozenset(
    (
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "cpu_offload",
        "distributed_optimizer",
        "offload_optimizer",
        "offload_param",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "sharding_strategy",
    )
)


# Fields on which neither the parameters of a rank depend nor their collectives.
OF_TOKENS: dict[str, Any] = {
    "batch": 1,
    "seq": 1,
    "loss": OWN_LOSS,
    "recompute": NONE,
    "rule": EVERYTHING,
    "reentrant": False,
    "sequence_parallel": False,
}


class RankSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of one rank for one micro-batch.

    - blocks, moves: kernels and collectives of one layer of each kind
    - embedding, head: their kernels; ends: their collectives
    """

    blocks: tuple[BlockSeconds, ...]
    moves: tuple[LayerCollectives, ...]
    embedding: BlockSeconds
    head: BlockSeconds
    ends: tuple[Seconds, Seconds]


def rank_seconds(run: Run, engine: str, machine: Machine) -> RankSeconds:
    """The seconds of a rank: floats for one run, arrays for a run with arrays of sizes."""
    return _rank_seconds(as_timed(run), engine, Same(machine))


@remembered(8)
def _rank_seconds(run: Run, engine: str, machine: Same[Machine]) -> RankSeconds:
    """The seconds of a run without what they do not depend on.

    Operations around scores are others for one sequence than for several, so each rank that has
    them is timed alone.
    """
    bare, places = distinct_ranks(run)
    kinds = () if places is None or engine_row(engine).megatron else layer_kinds(run.arch)
    if any(runs_scores(bare, engine, kind) for kind in kinds):
        ones = single_ranks(bare, int(places.max()) + 1)
        return spread(stacked([_rank(one, engine, machine) for one in ones]), places)
    return spread(_rank(bare, engine, machine), places)


def _rank(run: Run, engine: str, machine: Same[Machine]) -> RankSeconds:
    of_layers = _layers(replace(run, loss=OWN_LOSS), engine, machine)
    blocks, moves, embedding, ends = of_layers
    head = _head(run, engine, machine)
    return RankSeconds(blocks=blocks, moves=moves, embedding=embedding, head=head, ends=ends)


def as_timed(run: Run) -> Run:
    """The run without what none of its layers' kernels and collectives depends on."""
    options = {key: value for key, value in run.options.items() if key not in UNREAD_OPTIONS}
    if options.get("zero_stage") != 3:  # which has a linear layer of its own
        options.pop("zero_stage", None)
    mesh, rule = replace(run.mesh, dp=1, pp=1), replace(run.rule, first_layers=None)
    return replace(run, **UNREAD, mesh=mesh, rule=rule, options=options)


@remembered(32)
def _layers(
    run: Run, engine: str, machine: Same[Machine]
) -> tuple[
    tuple[BlockSeconds, ...], tuple[LayerCollectives, ...], BlockSeconds, tuple[Seconds, Seconds]
]:
    """Kernels and collectives of a layer of each kind, and those of the ends but the head's."""
    of, kinds = machine.value, layer_kinds(run.arch)
    blocks = tuple(layer_seconds(run, engine, of, kind) for kind in kinds)
    moves = tuple(
        layer_collectives(run, engine, of, kind, block)
        for kind, block in zip(kinds, blocks, strict=True)
    )
    return blocks, moves, embedding_seconds(run, engine, of), end_collectives(run, engine, of)


@remembered(32)
def _head(run: Run, engine: str, machine: Same[Machine]) -> BlockSeconds:
    """Kernels of the head, which a loss is part of."""
    return head_seconds(run, engine, machine.value)


class StageSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of one micro-batch on the slowest stage, and on all stages together (`every`).

    - kernels: compute; collectives: those inside layers; waiting: for the host
    """

    kernels: Seconds
    collectives: Seconds
    waiting: Seconds
    every: Seconds

    @property
    def total(self) -> Seconds:
        """Seconds of the slowest stage."""
        return self.kernels + self.collectives + self.waiting


def step_seconds(run: Run, engine: str, machine: Machine) -> StepSeconds:
    """The seconds of one step: floats for one run, arrays for a run with arrays of sizes."""
    kinds = layer_kinds(run.arch)
    where = stages(run, kinds)
    stage, once, passes = _stage(run, engine, kinds, where, rank_seconds(run, engine, machine))
    bare = replace(run, **UNREAD, **OF_TOKENS)
    owned, sync = _synchronized(bare, engine, Same(machine), where.first)
    each, at_end = exposed_seconds(run, engine, sync, passes)
    sent_each, sent_once = sent(run, sent_seconds(run, machine))
    stepped = 0.0
    if not offloaded(run):
        stepped = optimizer_seconds(run, engine, machine, owned.stepped)
    moved = offload_seconds(run, engine, owned.stepped)
    many = run.micro_batches
    copies = copy_seconds(run, engine, machine, owned)
    added = accumulation_seconds(run, engine, machine, owned)
    return _step(
        run,
        engine,
        compute=(stage.kernels + copies) * many + added * (many - 1),
        host=stage.waiting * many + once,
        exposed_communication=(stage.collectives + each + sent_each) * many + (at_end + sent_once),
        bubble=bubble(run, stage.every, stage.total),
        optimizer=stepped,
        offload=moved,
    )


@remembered(8)
def _synchronized(
    run: Run, engine: str, machine: Same[Machine], first: tuple[Num, ...]
) -> tuple[RankParameters, Synchronization]:
    """The parameters of a rank whose stage has `first` layers of each kind, and the collectives
    over its data-parallel ranks.
    """
    owned = rank_parameters(run, engine, layer_kinds(run.arch), first)
    return owned, synchronization(run, engine, machine.value, owned)


def _step(run: Run, engine: str, **parts: Seconds) -> StepSeconds:
    """The parts, their sum, and its interval."""
    estimate = summed(parts.values())
    low, high = interval_factors(run, engine)
    return StepSeconds(estimate=estimate, low=estimate * low, high=estimate * high, **parts)


def _stage(
    run: Run, engine: str, kinds: tuple[EqualLayers, ...], where: Stages, rank: RankSeconds
) -> tuple[StageSeconds, Seconds, Passes]:
    """One micro-batch on the slowest stage; the host's seconds once a step; and the passes under
    which gradients and weights move.

    Each pass of a layer takes as long as its kernels and collectives, or as the host needs to
    launch them: what it loses in forward it does not get back in backward.
    """
    share = recomputed_share(run)
    blocks, moves, ends = rank.blocks, rank.moves, (rank.embedding, rank.head)
    kernels = tuple(b.forward + b.backward + b.recompute * share for b in blocks)
    passes = tuple(_both_passes(b, m, share) for b, m in zip(blocks, moves, strict=True))
    layers = tuple(forward + backward for forward, backward in passes)
    first, last = rank.ends
    embedding, head = (block.total for block in ends)
    computed = slowest(run, where, kernels, embedding, head)
    moved = slowest(run, where, layers, embedding + first, head + last)
    launches = host_seconds(run, engine, blocks, both_ends(*ends))
    together: Any = smaller(run.mesh.tp, run.gpus_per_node)
    slower = 1 + SLOWEST_HOST * (together - 1)
    waited = tuple(
        (larger(forward, launched * slower), larger(backward, relaunched * slower))
        for (forward, backward), launched, relaunched in zip(
            passes, launches.forwards, launches.backwards, strict=True
        )
    )
    waits = tuple(forward + backward for forward, backward in waited)
    embedding, head = embedding + first, larger(head + last, launches.ends)
    slow = slowest(run, where, waits, embedding, head)
    counts = tuple(kind.count for kind in kinds)
    stage = StageSeconds(
        kernels=computed,
        collectives=difference(moved, computed),
        waiting=difference(slow, moved),
        every=weighted(counts, waits) + embedding + head,
    )
    return stage, launches.step, _passes(where, waited, moves, share, ends[0])


def _both_passes(
    block: BlockSeconds, moves: LayerCollectives, share: Seconds
) -> tuple[Seconds, Seconds]:
    """Forward, and backward with recompute, of one layer and its collectives."""
    backward = block.backward + moves.backward
    return block.forward + moves.forward, backward + (block.recompute + moves.recompute) * share


def _passes(
    where: Stages,
    waited: tuple[tuple[Seconds, Seconds], ...],
    moves: tuple[LayerCollectives, ...],
    share: Seconds,
    embedding: BlockSeconds,
) -> Passes:
    """Forward and backward of the first stage, under which gradients and weights move: its kernels
    and the time in which it waits for the host, without the collectives of its layers.
    """
    forwards, backwards = [], []
    for (forward, backward), one in zip(waited, moves, strict=True):
        forwards.append(difference(forward, one.forward))
        backwards.append(difference(backward, one.backward + one.recompute * share))
    forward = weighted(where.first, tuple(forwards)) + embedding.forward
    return Passes(forward, weighted(where.first, tuple(backwards)) + embedding.backward)
