"""PyTorch FSDP2: `fully_shard` on every layer, then on the whole model.

Strategies, by what `fully_shard` is given:
- `full_shard`: `reshard_after_forward=True` everywhere, the root included. (torch's own default,
  None, keeps the root gathered between forward and backward: `reshard_root_after_forward=false`.)
- `shard_grad_op`: `reshard_after_forward=False`.
- `hybrid_shard`: `full_shard` on a mesh of (replicas, `hybrid_shard_size`).
- `no_shard`: `replicate`, FSDP2's code with one rank per shard, never resharded. It still keeps
  a gathered copy beside each parameter.
Gradients are reduced after every micro-batch, so what accumulates is sharded. With `cpu_offload`
the shards, their gradients and the optimizer are in host memory (`CPUOffloadPolicy`, pinned).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.dtypes import BITS
from ...ledger.ledger import PARAM, Entry, Instant, Ledger
from ...ledger.num import Num, holds, larger, nothing, smaller
from ...ledger.remember import remembered
from ...ledger.source import code
from ...model.arch import Layer
from ...run.engine import Engine
from ...run.phases import STARTUP
from ...run.run import Precision, Run
from ...step.activations import UNIT, StageWalks, activation_entries, setting, walks
from ...step.block_events import BlockRun, plays
from ...step.layer_groups import LayerGroup, blocks
from ...step.optimizers import default_implementation
from ...step.states import buffer_entry, optimizer_entries
from ...step.workspaces import workspace_entries
from .gather import between_entries, buffer_entries, gathered_entries
from .instants import StepShape, ends_apart, spots
from .layout import FsdpLayout, in_order, shard_rows
from .offload import host_shard_entries, host_step_entries, staged_entries
from .reduce import output_entries, reduced_entries, sharded_gradient_entries
from .units import FsdpUnit, UnitBits, UnitParameter, layer_pieces, root_pieces, tower_shards, unit

# Bits of the shards and of the arithmetic: MixedPrecisionPolicy(param_dtype) for mixed runs.
PRECISIONS = {
    "fp32": (32, 32), "bf16_mixed": (32, 16), "fp16_mixed": (32, 16),
    "bf16_pure": (16, 16), "fp16_pure": (16, 16),
}  # fmt: skip
OPTIONS: Mapping[str, Any] = {
    "sharding_strategy": "full_shard",
    "reduce_dtype": None,  # None: the dtype of the gradients, which is that of the arithmetic
    "hybrid_shard_size": None,  # None: the GPUs of a node
    "reshard_root_after_forward": None,  # None: as the strategy says for the layers
    "cpu_offload": False,
}


START = Instant(name="startup", phase=STARTUP, title="start-up: shards are made")


class ShardEntries(Struct, frozen=True):
    """What a rank holds whatever the tokens: its shards, and what comes and goes with units."""

    plan: FsdpLayout
    shards: tuple[Entry, ...]
    units: tuple[Entry, ...]


def shard_ranks(run: Run) -> Num:
    """Ranks that share one copy of the parameters."""
    strategy = _option(run, "sharding_strategy")
    if strategy == "no_shard":
        return 1
    if strategy == "hybrid_shard":
        return smaller(_option(run, "hybrid_shard_size") or run.gpus_per_node, run.mesh.dp)
    return run.mesh.dp


def problems(run: Run) -> Iterator[str]:
    """What `fully_shard` or its mesh would refuse."""
    if run.quantization:
        yield (f"training.quantization={run.quantization!r}: fully_shard does not split packed "
               "weights; leave it out or use engine pytorch_ddp")  # fmt: skip
    if run.autocast:
        yield ("training.autocast=true: FSDP casts by its own policy; leave it out and set "
               "training.precision to bf16_mixed")  # fmt: skip
    if run.arch.tower and _option(run, "cpu_offload"):
        yield ("engine.cpu_offload=true is not modelled for a model with a vision tower; leave it "
               "out, or try engine deepspeed with offload_param cpu")  # fmt: skip
    hybrid = _option(run, "sharding_strategy") == "hybrid_shard"
    given = _option(run, "hybrid_shard_size")
    if given and not hybrid:
        yield (f"engine.hybrid_shard_size={given} applies to hybrid_shard only; leave it out or "
               "set engine.sharding_strategy to hybrid_shard")  # fmt: skip
    again = _option(run, "reshard_root_after_forward")
    if again is not None and _option(run, "sharding_strategy") == "no_shard":
        yield (f"engine.reshard_root_after_forward={str(again).lower()}: replicate never reshards; "
               "leave it out or set engine.sharding_strategy to full_shard")  # fmt: skip
    ranks, dp = shard_ranks(run), run.mesh.dp
    if hybrid and isinstance(dp, int) and (dp % ranks or (given or 1) > dp):
        most = min(ranks, dp)
        near = next((n for n in range(most, max(0, most - 10_000), -1) if dp % n == 0), 1)
        yield (f"engine.hybrid_shard_size={given or ranks} does not divide "
               f"data_parallel_size={dp}; try {near}")  # fmt: skip


def ledger(run: Run) -> Ledger:
    """Shards that stay, units that come and go, and the activations of a whole model."""
    stored, compute = PRECISIONS[run.precision]
    inside = _as_computed(run, stored, compute)
    stack = ends_apart(blocks(run, 0, len(run.arch.layers)))
    held = _held(run, stack)
    plan = held.plan
    beats = tuple(spot.beat for spot in plan.spots)
    how = setting(inside, Precision(compute, compute))
    done = walks(inside, how, stack)
    done = replace(done, gradients=UNIT)  # only sharded ones accumulate
    entries = (
        *held.shards,
        *between_entries(plan, done),
        *workspace_entries(run, tuple(b for b in beats if not b.instant.step)),
        *held.units,
        *activation_entries(inside, how, stack, beats, done),
    )
    instants = (START, *(b.instant for b in beats))
    return Ledger(instants, entries, _plays(plan, stack, done) if run.unrolled else {})


def _held(run: Run, stack: tuple[LayerGroup, ...]) -> ShardEntries:
    """What tokens do not change is remembered."""
    if run.unrolled:
        return _made(run, stack)
    bare = replace(run, batch=0, seq=0, options=None)
    return _rolled(bare, tuple(run.options.items()), stack)


@remembered(64)
def _rolled(
    bare: Run, options: tuple[tuple[str, Any], ...], stack: tuple[LayerGroup, ...]
) -> ShardEntries:  # fmt: skip
    return _made(replace(bare, options=dict(options)), stack)


def _made(run: Run, stack: tuple[LayerGroup, ...]) -> ShardEntries:
    plan = _plan(run, stack)
    units = (
        *staged_entries(plan),
        *gathered_entries(plan),
        *buffer_entries(plan),
        *reduced_entries(plan),
        *output_entries(plan),
        *(() if plan.offload else sharded_gradient_entries(plan)),
        *_step(plan),
    )
    return ShardEntries(
        plan, tuple((_host_shards if plan.offload else _shards)(plan, START)), units
    )


def _plays(
    plan: FsdpLayout, stack: tuple[LayerGroup, ...], done: StageWalks
) -> dict[str, BlockRun]:
    """Scripts whose gradients stay until reduce-scatter has its input; the root reduces last."""
    found = plays(stack, tuple(spot.beat for spot in plan.spots), done)
    for spot in plan.spots:
        play = found.get(spot.beat.name)
        if play is not None and not play.forward:
            own = f"{spot.beat.name}.scatter" if spot.at == "layer" else None
            root = "later.scatter.root" if spot.beat.later else "scatter.root"
            found[spot.beat.name] = replace(play, until=own or root)
    return found


def _option(run: Run, name: str) -> Any:
    return run.options.get(name, OPTIONS[name])


def _as_computed(run: Run, stored: int, compute: int) -> Run:
    """The run as its layers see it: a policy casts adapters, too."""
    if run.adapter is None or stored == compute:
        return run
    return replace(run, adapter=replace(run.adapter, bits=compute))


def _widths(run: Run) -> tuple[UnitBits, UnitBits]:
    """Of the base model, and of adapters."""
    stored, compute = PRECISIONS[run.precision]
    name = _option(run, "reduce_dtype")
    base = UnitBits(stored, compute, BITS[name] if name else compute)
    if run.adapter is None:
        return base, base
    inner = compute if stored != compute else run.adapter.bits
    return base, UnitBits(run.adapter.bits, inner, BITS[name] if name else inner)


def _plan(run: Run, stack: tuple[LayerGroup, ...]) -> FsdpLayout:
    base, extra = _widths(run)
    ranks, offload = shard_ranks(run), bool(_option(run, "cpu_offload"))
    strategy = _option(run, "sharding_strategy")
    keeps = strategy in ("shard_grad_op", "no_shard")
    again = _option(run, "reshard_root_after_forward")
    kinds: dict[int, tuple[int, str, Layer]] = {}
    for block in stack:
        title = f"{block.layer.kind} layers"
        kinds.setdefault(id(block.layer), (len(kinds), title, block.layer))
    arch = run.arch
    head = arch.after_parameters + (arch.embedding[0].numel if arch.tied else 0)
    several = holds(ranks > 1)
    course = StepShape(
        root_again=not keeps if again is None else bool(again), prefetches=not keeps,
        casts=offload or base.stored != base.compute or extra.stored != extra.compute,
        alone=not nothing(1 - several), offload=offload, every=run.unrolled,
    )  # fmt: skip
    return FsdpLayout(
        run=run,
        kinds=tuple(
            (title, unit(run, layer_pieces(run, layer, base, extra), ranks, offload=offload))
            for _, title, layer in kinds.values()
        ),
        layers=tuple(kinds[id(layer)][0] for layer in arch.layers),
        root=unit(run, root_pieces(run, base), ranks, offload=offload),
        head=0 if run.frozen else head * base.compute // 8,
        several=several,
        keeps=keeps,
        replicas=strategy in ("hybrid_shard", "no_shard"),
        offload=offload,
        spots=tuple(spots(stack, run.micro_batches, course)),
    )


def _shards(plan: FsdpLayout, start: Instant) -> Iterator[Entry]:
    """Parameters as they are stored, from start-up on."""
    run = plan.run
    beats = tuple(spot.beat for spot in plan.spots)
    live: dict[str, Num] = {start.name: 1, **{beat.name: 1 for beat in beats}}
    source = code("torch 2.13 F/_fsdp_param.py:298-316: rows padded to equal shards")
    for title, size, tensors in shard_rows(plan):
        yield Entry(name=f"{title}: sharded parameters", kind=PARAM, bytes=size, live=live,
                    source=source, tensors=tensors)  # fmt: skip
    if run.arch.tower:
        eyes = tower_shards(run, shard_ranks(run), PRECISIONS[run.precision][0])
        yield Entry(name="vision tower: sharded parameters", kind=PARAM, bytes=sum(eyes), live=live,
                    source=source, tensors=lambda: eyes)  # fmt: skip
    yield replace(buffer_entry(run, beats), live=live)
    if run.arch.tied:
        yield Entry(
            name="tied head, before it is the embedding again", kind=PARAM,
            bytes=_twin(run).shard, live={start.name: 1},
            source=code("torch 2.13 nn/modules/module.py to_empty: each name gets a tensor"),
        )  # fmt: skip


def _twin(run: Run) -> FsdpUnit:
    """The tensor that a tied head is until it is the embedding again; nothing where it is not."""
    stored, _ = PRECISIONS[run.precision]
    table = UnitParameter(run.arch.embedding[0], UnitBits(stored, stored, stored), False)
    return unit(run, [table] if run.arch.tied else [], shard_ranks(run))


def _host_shards(plan: FsdpLayout, start: Instant) -> Iterator[Entry]:
    """Parameters and gradients on the host; only buffers stay on the GPU."""
    beats = tuple(spot.beat for spot in plan.spots)
    buffers = buffer_entry(plan.run, beats)
    yield replace(buffers, live={start.name: 1, **buffers.live})
    yield from host_shard_entries(plan, start, _twin(plan.run).shard)


def _step(plan: FsdpLayout) -> Iterator[Entry]:
    """The optimizer's states and temporaries on this rank's shards, and gradient clipping."""
    run, (_, extra) = plan.run, _widths(plan.run)
    beats = tuple(spot.beat for spot in plan.spots)
    total, largest, tensors = plan.root.stepped, plan.root.largest, plan.root.tensors
    for kind, (_, one) in enumerate(plan.kinds):
        count = plan.layers.count(kind)
        total, tensors = total + count * one.stepped, tensors + count * one.tensors
        largest = larger(largest, one.largest)
    if plan.offload:
        yield from host_step_entries(plan, total, largest, tensors, extra.stored)
        return
    name = run.implementation or default_implementation(run.optimizer)
    sizes = [part.elements for part in in_order(plan) if part.trained] if run.unrolled else []
    yield from optimizer_entries(
        run, total, extra.stored, beats, implementation=name, largest=largest, tensors=tensors,
        sizes=tuple((int(size), 1) for size in sizes),
    )  # fmt: skip


def side_streams(run: Run) -> bool:
    """FSDP2: streams for its copies and collectives (torch 2.11 _fsdp_param_group.py:84)."""
    return True


ENGINE = Engine(
    name="fsdp",
    tower="sharded weights alone: without a gradient torch makes no optimizer states for them",
    title="PyTorch FSDP",
    side_streams=side_streams,
    options=OPTIONS,
    # Left out: Adafactor, which fails on sharded tensors (torch 2.13: in-place square of a partial
    # norm); bitsandbytes' optimizers, reported to crash on FSDP2 shards; Muon, for which torch
    # gathers whole matrices in a way that is not modelled.
    optimizers=frozenset(("adamw", "adam", "sgd", "sgd_momentum")),
    problems=problems,
    ledger=ledger,
)
