"""The ledger of one rank of FSDP, of both versions."""

from __future__ import annotations

from msgspec.structs import replace

from ....ledger.ledger import LATER, Ledger
from ....pytorch.modelling.huggingface.setting import BlockSetting
from ....run.run import Run
from ...step.activations import FREE_TOGETHER, KEEP_FOR_STEP, StageWalks
from ...step.activations import walks as walk_stage
from ...step.layer_groups import LayerGroups
from .accumulation import accumulates
from .flat.version import VERSION_1
from .instants import FsdpInstant
from .layout import FsdpLayout
from .options import option
from .states import state_entries
from .stream import UnitStreamWriter
from .unit_ledger import FsdpVersion, unit_ledger


def ledger(run: Run) -> Ledger:
    """The ledger of one rank: its shards, the units being gathered or reduced, activations."""
    return unit_ledger(run, VERSION_1 if option(run, "fsdp_version") == 1 else VERSION_2)


def _until(plan: FsdpLayout, instant: FsdpInstant) -> str:
    """Until whole gradients are copied into reduce-scatter's input; the root reduces last."""
    named = instant.step.instant
    if accumulates(plan.run):
        named = replace(named, micro_batch=LATER)
    if instant.action == "layer":
        return named.moved(f"{named.where}.scatter").name
    of_head = plan.head is not None and instant.action == "loss.backward"
    return named.moved(f"scatter.{'head' if of_head else 'root'}").name


def _walks(run: Run, setting: BlockSetting, stack: LayerGroups) -> StageWalks:
    """The walks of layers and head. A micro-batch that reduces frees a unit's gradients together;
    else the next one adds to them.
    """
    gradients = KEEP_FOR_STEP if accumulates(run) else FREE_TOGETHER
    return replace(walk_stage(run, setting, stack), gradients=gradients)


VERSION_2 = FsdpVersion(
    states=state_entries, walks=_walks, until=_until, writer=lambda plan: UnitStreamWriter
)
