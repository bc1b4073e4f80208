"""The ledger of a rank of FSDP version 1."""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.ledger import Ledger
from ...ledger.num import nothing
from ...modelling.huggingface.head import head_walk
from ...modelling.huggingface.setting import BlockSetting
from ...run.run import Precision, Run
from ...step.activations import FREE_TOGETHER, StageWalks, activation_entries
from ...step.activations import setting as block_setting
from ...step.activations import walks as walk_stage
from ...step.block_events import BlockRun, block_runs
from ...step.layer_groups import LayerGroup, layer_groups
from ...step.model_inputs import named_until_return
from ...step.workspaces import workspace_entries
from .activations import between_entries
from .flat_instants import POST
from .flat_layout import FlatLayout
from .flat_states import state_entries
from .flat_stream import FlatStreamWriter, UnlimitedStreamWriter
from .instants import ends_apart
from .options import PRECISIONS, as_computed, option


def flat_ledger(run: Run) -> Ledger:
    """Shards, units that are gathered or reduced, activations."""
    _, compute = PRECISIONS[run.precision]
    computed = as_computed(run)
    stack = ends_apart(layer_groups(run, 0, len(run.arch.layers)))
    states = state_entries(run, stack)
    plan = states.plan
    instants = plan.step_instants
    setting = block_setting(computed, Precision(compute, compute))
    walks = _walks(computed, setting, stack)
    entries = (
        *states.shards,
        *between_entries(plan, walks),
        *workspace_entries(run, tuple(i for i in instants if not i.instant.step)),
        *states.units,
        *activation_entries(computed, setting, stack, instants, walks),
    )
    plays = _block_runs(plan, stack, walks) if run.unrolled else {}
    writer = FlatStreamWriter if option(run, "limit_all_gathers") else UnlimitedStreamWriter
    if nothing(plan.root.several):  # nothing is gathered, so nothing says how far the host is ahead
        return Ledger((*states.startup, *(i.instant for i in instants)), entries, plays)
    return Ledger((*states.startup, *(i.instant for i in instants)), entries, plays, writer)


def _walks(run: Run, setting: BlockSetting, stack: tuple[LayerGroup, ...]) -> StageWalks:
    """The walks of layers and head. Beside adapters, frozen weights of layers take gradients, too,
    because they are views of a flat parameter that does; those of the root do not.
    """
    taking = walk_stage(run, replace(setting, frozen=False), stack)
    if run.frozen:
        kept = (taking.first or taking.layers[0]).keeps_input
        named = named_until_return(run, setting, kept=kept)
        taking = replace(taking, head=head_walk(setting, run.arch, None, named))
    return replace(taking, gradients=FREE_TOGETHER)


def _block_runs(
    plan: FlatLayout, stack: tuple[LayerGroup, ...], walks: StageWalks
) -> dict[str, BlockRun]:
    """The block of each instant of an unrolled run. Whole gradients stay alive until the flat one
    is made; the root's is made last.
    """
    runs = block_runs(stack, plan.step_instants, walks)
    for instant in plan.instants:
        name = instant.step.name
        block_run = runs.get(name)
        if block_run is not None and not block_run.forward:
            root = "later.reduce.root" if instant.step.later else "reduce.root"
            after = "after" if plan.below == POST and instant.layer > 0 else "reduce"
            until = f"{name}.{after}" if instant.action == "layer" else root
            runs[name] = replace(block_run, until=until)
    return runs
