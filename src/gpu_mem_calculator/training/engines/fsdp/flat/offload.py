"""FSDP version 1 with CPUOffload: shards, their gradients and the optimizer in host memory.

Every shard and its gradient are pinned before the first forward. A sharded gradient also stays on
the GPU until backward is over. torch 2.13 distributed/fsdp: `D` in the sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from .....ledger.ledger import CPU, GRAD, PARAM, Entry
from .....ledger.num import Num
from .....ledger.source import code
from ..instants import START
from ..offload import PINNED
from .layout import FlatLayout
from .units import FlatUnit

PINNED_CODE = code(f"torch 2.13 D/_flat_param.py:1256 init_flat_param_attributes; {PINNED}")
MADE_CODE = code("torch 2.13 D/_init_utils.py:582: shards go to pageable memory first")


def host_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Parameters and gradients in pinned memory, a power of two of bytes for each unit."""
    steady: dict[str, Num] = {i.step.name: 1 for i in plan.instants}
    for title, count, unit in _units(plan):
        name, size = f"{title}: sharded parameters, pinned", unit.pinned * count
        yield Entry(name, PARAM, size, steady, PINNED_CODE, place=CPU)
        name, size = f"{title}: sharded gradients, pinned", unit.pinned_grads * count
        yield Entry(name, GRAD, size, steady, PINNED_CODE, place=CPU)
        name, size = f"{title}: sharded parameters, not pinned yet", unit.shard * count
        yield Entry(name, PARAM, size, {START.name: 1}, MADE_CODE, place=CPU)


def _units(plan: FlatLayout) -> Iterator[tuple[str, int, FlatUnit]]:
    """A title, the number of such units, and the unit."""
    for kind, (title, unit) in enumerate(plan.kinds):
        yield title, plan.layers.count(kind), unit
    yield "embedding and head", 1, plan.root
