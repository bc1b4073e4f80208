"""The flat units of a run, and the instants of its step."""

from __future__ import annotations

from msgspec import Struct

from .....ledger.num import EMPTY, Bytes, sized
from .....models.arch.arch import Layer
from .....run.run import Run
from ....step.instants import Instants
from ....step.layer_groups import LayerGroups
from ..accumulation import accumulates
from ..instants import FsdpInstant
from ..options import HYBRID, KEEP_GATHERED, loss_outside, option, shard_ranks, unit_bits
from ..units import UnitBits, embedding_parameters, head_parameters, layer_parameters
from .instants import POST, PRE, FlatShape, flat_instants
from .units import FlatOptions, FlatUnit, flat_unit

# Its CUDA streams beside torch's own, each with a pool of allocator blocks
# (torch 2.13 D/_runtime_utils.py:269-285 _init_streams)
UNSHARD, PRE_UNSHARD, POST_BACKWARD, ALL_REDUCE = 1, 2, 3, 4


class FlatLayout(Struct, frozen=True, kw_only=True):
    """The units of a run and the instants of its step.

    kinds, layers, root: as in `UnitLayout`
    bits: of every parameter
    head_grads: bytes of the whole gradients that the root has after the loss's backward
    stays_gathered: where several ranks share them, layers stay gathered from forward to backward
    below: in backward, the layer below is gathered while a layer runs (PRE) or reduces (POST)
    ahead: in forward, the next layer is gathered before a layer runs
    cast_stream: the CUDA stream that casts reduced gradients
    offload: shards, their gradients and the optimizer are on the host
    init_device: where the model is before it is sharded
    upcast: how many times as long a shard is as before it is upcast, 1 if it is not
    """

    run: Run
    kinds: tuple[tuple[str, FlatUnit], ...]
    layers: tuple[int, ...]
    root: FlatUnit
    bits: UnitBits
    head_grads: Bytes
    stays_gathered: bool
    below: str
    ahead: bool
    cast_stream: int
    offload: bool
    init_device: str
    upcast: int
    instants: tuple[FsdpInstant, ...]

    @property
    def root_title(self) -> str:
        """What the root unit has."""
        return "embedding and head"

    @property
    def step_instants(self) -> Instants:
        """The instants, as the other packages take them."""
        return tuple(instant.step for instant in self.instants)

    @property
    def runs_ahead(self) -> bool:
        """Whether the layer below is gathered before a layer's backward."""
        return self.below == PRE

    @property
    def runs_behind(self) -> bool:
        """Whether it is gathered before a layer's gradients are reduced."""
        return self.below in (PRE, POST)


def flat_layout(run: Run, stack: LayerGroups) -> FlatLayout:
    """The units and instants of a run. `stack`: the layer groups of the model."""
    base, adapter = unit_bits(run)
    offload = bool(option(run, "cpu_offload"))
    how = FlatOptions(
        shard_ranks(run), bool(option(run, "use_orig_params")), offload, frozen=run.frozen
    )
    strategy, below = option(run, "sharding_strategy"), option(run, "backward_prefetch")
    kinds: dict[int, tuple[int, str, Layer]] = {}
    for group in stack:
        title = f"{group.layer.kind} layers"
        kinds.setdefault(id(group.layer), (len(kinds), title, group.layer))
    arch, ahead = run.arch, bool(option(run, "forward_prefetch"))
    head = arch.after_parameters + (arch.embedding[0].numel if arch.tied else 0)
    root = [*embedding_parameters(run, base), *head_parameters(run, base)]
    outside = loss_outside(run)
    shape = FlatShape(
        prefetch=below,
        ahead=ahead,
        every=run.unrolled,
        loss_outside=outside,
        accumulates=accumulates(run),
    )
    return FlatLayout(
        run=run,
        kinds=tuple(
            (title, flat_unit(layer_parameters(run, layer, base, adapter), base, how))
            for _, title, layer in kinds.values()
        ),
        layers=tuple(kinds[id(layer)][0] for layer in arch.layers),
        root=flat_unit(root, base, how),
        bits=base,
        head_grads=EMPTY if run.frozen else sized(head, base.compute),
        stays_gathered=strategy in KEEP_GATHERED,
        below=below,
        ahead=ahead,
        cast_stream=ALL_REDUCE if strategy in HYBRID else POST_BACKWARD,
        offload=offload,
        init_device=option(run, "init_device") or "cpu",
        upcast=base.stored // 16 if option(run, "init_dtype") else 1,
        instants=tuple(flat_instants(stack, run.micro_batches, shape)),
    )
