"""PyTorch FSDP: version 2, `fully_shard` on every layer, then on the whole model.

Version 1, `FullyShardedDataParallel`, is in `flat_*.py`. Version 2 reduces gradients after every
micro-batch, so what accumulates is sharded. With `cpu_offload` the shards, their gradients and the
optimizer are in host memory (`CPUOffloadPolicy`, pinned).
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.ledger import Ledger
from ...run.engine import Engine
from ...run.run import Precision, Run
from ...step.activations import FREE_TOGETHER, StageWalks, activation_entries
from ...step.activations import setting as block_setting
from ...step.activations import walks as walk_stage
from ...step.block_events import BlockRun, block_runs
from ...step.layer_groups import LayerGroup, layer_groups
from ...step.workspaces import workspace_entries
from .activations import between_entries
from .checks import problems
from .flat_ledger import flat_ledger
from .instants import ends_apart
from .layout import FsdpLayout
from .options import OPTIONS, PRECISIONS, as_computed, option
from .startup import startup_instants
from .states import state_entries
from .stream import UnitStreamWriter


def ledger(run: Run) -> Ledger:
    """The ledger of one rank: its shards, the units being gathered or reduced, activations."""
    return flat_ledger(run) if option(run, "fsdp_version") == 1 else _unit_ledger(run)


def _unit_ledger(run: Run) -> Ledger:
    """The ledger of version 2."""
    _, compute = PRECISIONS[run.precision]
    computed = as_computed(run)
    stack = ends_apart(layer_groups(run, 0, len(run.arch.layers)))
    states = state_entries(run, stack)
    plan = states.plan
    instants = plan.step_instants
    setting = block_setting(computed, Precision(compute, compute))
    walks = replace(
        walk_stage(computed, setting, stack), gradients=FREE_TOGETHER
    )  # shards accumulate
    entries = (
        *states.shards,
        *between_entries(plan, walks),
        *workspace_entries(run, tuple(i for i in instants if not i.instant.step)),
        *states.units,
        *activation_entries(computed, setting, stack, instants, walks),
    )
    block_runs = _block_runs(plan, stack, walks) if run.unrolled else {}
    named = (*startup_instants(plan), *(i.instant for i in instants))
    return Ledger(named, entries, block_runs, UnitStreamWriter)


def _block_runs(
    plan: FsdpLayout, stack: tuple[LayerGroup, ...], walks: StageWalks
) -> dict[str, BlockRun]:
    """The block of each instant of an unrolled run. Whole gradients stay alive until they are
    copied into reduce-scatter's input; the root reduces last.
    """
    runs = block_runs(stack, plan.step_instants, walks)
    for instant in plan.instants:
        name = instant.step.name
        block_run = runs.get(name)
        if block_run is not None and not block_run.forward:
            later = "later." if instant.step.later else ""
            of_head = plan.head is not None and instant.action == "loss.backward"
            end = f"{later}scatter.{'head' if of_head else 'root'}"
            until = f"{name}.scatter" if instant.action == "layer" else end
            runs[name] = replace(block_run, until=until)
    return runs


def side_streams(run: Run) -> bool:
    """Streams for copies and collectives (torch 2.11 _fsdp_param_group.py:84; version 1:
    _runtime_utils.py _init_streams).
    """
    return True


ENGINE = Engine(
    name="fsdp",
    tower="trained, and sharded like the text model's",
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
