"""PyTorch FSDP: version 2, `fully_shard` on every layer, then on the whole model.

Version 1, `FullyShardedDataParallel`, is in `flat/`. Gradients are reduced after every
micro-batch, so what accumulates is sharded, unless `sync_each_batch` is false (`accumulation.py`).
With `cpu_offload` the shards, their gradients and the optimizer are in host memory
(`CPUOffloadPolicy`, pinned).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ...optimizers import FUSED, OPTIMIZERS
from .checks import problems
from .options import OPTIONS

if TYPE_CHECKING:
    from ....ledger.ledger import Ledger


def ledger(run: Run) -> Ledger:
    """The ledger of one rank: its shards, the units being gathered or reduced, activations."""
    from .step_ledger import ledger

    return ledger(run)


def side_streams(run: Run) -> bool:
    """Streams for copies and collectives (torch 2.11 _fsdp_param_group.py:84; version 1:
    _runtime_utils.py _init_streams).
    """
    return True


ENGINE = Engine(
    name="fsdp",
    tower="trained, and sharded like the text model's",
    title="PyTorch FSDP",
    package="torch",
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
