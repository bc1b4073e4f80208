"""States of a DeepSpeed rank: weights, masters, optimizer states, and the step's copies."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ....ledger.ledger import PARAM, Entry
from ....ledger.num import sized
from ...step.states import buffer_entry
from . import offload, stage0, stage3, stage12
from .layout import BUILD, SETUP, ZeroLayout, always


def state_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """The entries of a rank's states."""
    run = plan.run
    buffers = buffer_entry(run, plan.instants, plan.layers)
    yield replace(buffers, live={**buffers.live, BUILD: 1, SETUP: 1})
    if plan.stage == 3:
        yield from stage3.state_entries(plan)
        yield stage3.persistent_entry(plan)
        yield from offload.shard_entries(plan)
        return
    if run.frozen:
        size, where = sized(plan.frozen, 8 * plan.width), "runtime/engine.py:2091"
        yield plan.entry("frozen parameters", PARAM, size, always, where, (BUILD, SETUP))
    if plan.stage:
        yield from stage12.state_entries(plan)
        yield from stage12.step_entries(plan)
        if plan.offload != "none":
            yield from offload.slice_entries(plan)
    elif run.precision == "fp32":
        yield from stage0.plain_entries(plan)
    elif plan.bf16_optimizer:
        yield from stage0.pipeline_entries(plan)
    else:
        yield from stage0.fused_entries(plan)
