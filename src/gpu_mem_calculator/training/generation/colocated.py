"""vLLM's engine beside a policy that is trained, on the same card (trl 1.16.0
generation/vllm_generation.py).

Asleep, its weights and its KV cache are not mapped, and cached memory returns to the driver (vllm
0.11.0 device_allocator/cumem.py CuMemAllocator.sleep); CUDA graphs and what is outside torch stay.
From source, not measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import CPU, PARAM, RETURNED, Entry, Ledger
from ...ledger.num import Num, sized
from ...ledger.source import code
from ...run.phases import STARTUP
from ...run.rollout import EngineItem, Rollout
from ...run.served import ACTIVATION, KINDS, POOL, WEIGHTS

SLEEPING = (WEIGHTS, POOL)  # figures of which a sleeping engine has nothing on the card
VLLM_CODE = code("vllm 0.11.0 v1/worker/gpu_worker.py determine_available_memory, sleep")


def engine_entries(rollout: Rollout, ledger: Ledger, generation: str) -> Iterator[Entry]:
    """Entries of an engine's memory, from the end of start-up on. `generation`: the instant at
    which it generates; its activations are there only then.
    """
    started = [i.name for i in ledger.instants if i.phase == STARTUP and _always(i.present)][-1:]
    others = [i.name for i in ledger.instants if i.phase != STARTUP]
    for item in rollout.items:
        names = [*started, generation]
        if item.figure != ACTIVATION and not (rollout.sleep_level and item.figure in SLEEPING):
            names += others
        live: dict[str, Num] = dict.fromkeys(names, 1)
        yield Entry(
            name=f"vLLM: {item.name}",
            kind=KINDS[item.figure],
            bytes=sized(item.bytes, 8),
            live=live,
            source=VLLM_CODE,
            role=_role(rollout, item),
        )

    if rollout.sleep_level == 1:
        size = sum(item.bytes for item in rollout.items if item.figure == WEIGHTS)
        live = dict.fromkeys(others, 1)
        yield Entry("vLLM: weights, asleep", PARAM, sized(size, 8), live, VLLM_CODE, place=CPU)


def _always(present: Num) -> bool:
    return isinstance(present, int) and present == 1


def _role(rollout: Rollout, item: EngineItem) -> str:
    return RETURNED if rollout.sleep_level and item.figure in SLEEPING else ""
