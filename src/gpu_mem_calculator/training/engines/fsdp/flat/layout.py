"""The flat units of a run, and the instants of its step."""

from __future__ import annotations

from functools import partial

from .....run.run import Run
from ....step.layer_groups import LayerGroups
from ..accumulation import accumulates
from ..layout import UnitLayout, shared_fields
from ..options import HYBRID, loss_outside, option, shard_ranks, unit_bits
from ..units import embedding_parameters, head_parameters
from .instants import POST, PRE, FlatShape, flat_instants
from .units import FlatOptions, FlatUnit, flat_unit

# Its CUDA streams beside torch's own, each with a pool of allocator blocks
# (torch 2.13 D/_runtime_utils.py:269-285 _init_streams)
UNSHARD, PRE_UNSHARD, POST_BACKWARD, ALL_REDUCE = 1, 2, 3, 4


class FlatLayout(UnitLayout, frozen=True, kw_only=True):
    """The units of a run and the instants of its step, of version 1.

    below: in backward, the layer below is gathered while a layer runs (PRE) or reduces (POST)
    ahead: in forward, the next layer is gathered before a layer runs
    cast_stream: the CUDA stream that casts reduced gradients
    init_device: where the model is before it is sharded
    upcast: how many times as long a shard is as before it is upcast, 1 if it is not
    """

    root: FlatUnit
    below: str
    ahead: bool
    cast_stream: int
    init_device: str
    upcast: int

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
    base, _ = unit_bits(run)
    orig, offload = bool(option(run, "use_orig_params")), bool(option(run, "cpu_offload"))
    unit = partial(flat_unit, bits=base, how=FlatOptions(shard_ranks(run), orig, offload))
    below, ahead = option(run, "backward_prefetch"), bool(option(run, "forward_prefetch"))
    shape = FlatShape(
        prefetch=below,
        ahead=ahead,
        every=run.unrolled,
        loss_outside=loss_outside(run),
        accumulates=accumulates(run),
    )
    return FlatLayout(
        **shared_fields(run, stack, unit),
        root=unit([*embedding_parameters(run, base), *head_parameters(run, base)]),
        below=below,
        ahead=ahead,
        cast_stream=ALL_REDUCE if option(run, "sharding_strategy") in HYBRID else POST_BACKWARD,
        init_device=option(run, "init_device") or "cpu",
        upcast=base.stored // 16 if option(run, "init_dtype") else 1,
        instants=tuple(flat_instants(stack, run.micro_batches, shape)),
    )
