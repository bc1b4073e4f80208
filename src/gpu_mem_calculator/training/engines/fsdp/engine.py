"""PyTorch FSDP: version 2, `fully_shard` on every layer, then on the whole model.

Version 1, `FullyShardedDataParallel`, is in `flat/`. Gradients are reduced after every
micro-batch, so what accumulates is sharded, unless `sync_each_batch` is false (`accumulation.py`).
With `cpu_offload` the shards, their gradients and the optimizer are in host memory
(`CPUOffloadPolicy`, pinned).
"""

from __future__ import annotations

from msgspec.structs import replace

from ....ledger.ledger import LATER, Ledger
from ....ledger.units import MIB
from ....pytorch.modelling.huggingface.setting import BlockSetting
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ...optimizers import FUSED, OPTIMIZERS
from ...step.activations import FREE_TOGETHER, KEEP_FOR_STEP, StageWalks
from ...step.activations import walks as walk_stage
from ...step.layer_groups import LayerGroups
from .accumulation import accumulates
from .checks import problems
from .flat.version import VERSION_1
from .instants import FsdpInstant
from .layout import FsdpLayout
from .options import OPTIONS, option
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
    # Those of torch with a fused kernel. Left out: Adafactor, which fails on sharded tensors
    # (torch 2.13: in-place square of a partial norm); bitsandbytes' optimizers, reported to crash
    # on FSDP2 shards; Muon, for which torch gathers whole matrices in a way that is not modelled.
    optimizers=frozenset(n for n, row in OPTIMIZERS.items() if FUSED in row.implementations),
    host_libraries=HostLibraries(810 * MIB, "15 runs, 735 to 910 MiB"),
    stepping_host=HostLibraries(650 * MIB, "9 runs, 570 to 736 MiB"),
    problems=problems,
    ledger=ledger,
)
