"""The ledger of a rank, of either version of FSDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import Ledger, Writer
from ....pytorch.modelling.huggingface.setting import BlockSetting
from ....run.run import Precision, Run
from ...step.activations import StageWalks, activation_entries
from ...step.activations import setting as block_setting
from ...step.block_events import BlockRun, block_runs
from ...step.layer_groups import LayerGroup, layer_groups
from ...step.workspaces import workspace_entries
from .activations import between_entries
from .cache import MakeEntries
from .instants import FsdpInstant, ends_apart
from .options import PRECISIONS, as_computed
from .saving import with_full_state_dict


class FsdpVersion(Struct, frozen=True):
    """What a version of FSDP does in its own way; each function takes the version's layout.

    states: the entries of a run's parameters
    gradients: when the whole gradients of a block are freed, as in `StageWalks`
    walks: of layers and head
    until: the instant up to which the whole gradients of a block stay alive
    writer: writes the stream; None is the usual way
    """

    states: MakeEntries
    gradients: Callable[[Run], str]
    walks: Callable[[Run, BlockSetting, tuple[LayerGroup, ...]], StageWalks]
    until: Callable[[Any, FsdpInstant], str]
    writer: Callable[[Any], Callable[[Ledger], Writer] | None]


def unit_ledger(run: Run, version: FsdpVersion) -> Ledger:
    """Shards, units that are gathered or reduced, activations."""
    _, compute = PRECISIONS[run.precision]
    computed = as_computed(run)
    stack = ends_apart(layer_groups(run, 0, len(run.arch.layers)))
    states = version.states(run, stack)
    plan = states.plan
    instants = plan.step_instants
    setting = block_setting(computed, Precision(compute, compute))
    gradients = version.gradients(run)
    walks = replace(version.walks(computed, setting, stack), gradients=gradients)
    entries = (
        *states.shards,
        *between_entries(plan, walks),
        *workspace_entries(run, tuple(i for i in instants if not i.instant.step)),
        *states.units,
        *activation_entries(computed, setting, stack, instants, walks),
    )
    plays = _block_runs(plan, stack, walks, version) if run.unrolled else {}
    named = (*states.startup, *(i.instant for i in instants))
    writer, old_grads = version.writer(plan), run.gradients_in_forward
    whole_step = Ledger(named, entries, plays, writer, old_grads=old_grads)
    return with_full_state_dict(run, plan, whole_step)


def _block_runs(
    plan: Any, stack: tuple[LayerGroup, ...], walks: StageWalks, version: FsdpVersion
) -> dict[str, BlockRun]:
    """The block of each instant of an unrolled run. Whole gradients stay alive until they are
    copied into what is reduced.
    """
    runs = block_runs(stack, plan.step_instants, walks)
    for instant in plan.instants:
        block_run = runs.get(instant.step.name)
        if block_run is not None and not block_run.forward:
            runs[instant.step.name] = replace(block_run, until=version.until(plan, instant))
    return runs
