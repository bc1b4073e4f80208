"""PyTorch on one GPU, and DistributedDataParallel: every rank holds everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ...optimizers import OPTIMIZERS
from .checks import problems
from .options import OPTIONS

if TYPE_CHECKING:
    from ....ledger.ledger import Ledger


def ledger(run: Run) -> Ledger:
    """The ledger of one rank: the whole model, its gradients and optimizer states, activations."""
    from .step_ledger import ledger

    return ledger(run)


ENGINE = Engine(
    name="pytorch_ddp",
    tower="trained",
    title="PyTorch DDP",
    package="torch",
    alone_title="PyTorch",
    options=OPTIONS,
    optimizers=frozenset(OPTIMIZERS),
    host_libraries=HostLibraries(780 * MIB, "72 runs, 672 to 860 MiB"),
    problems=problems,
    ledger=ledger,
)
