"""Collectives of a script: a fake process group of the launcher's size, of which it is one rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ..jobs.ddp import broadcast_parameters, send_to_nobody
from ..trace.card import answer, patched
from .recording import ScriptInput


@contextmanager
def simulated_collectives(plan: ScriptInput) -> Iterator[None]:
    """init_process_group starts a fake group; collectives of Python objects return at once."""

    start = dist.init_process_group

    def init(*_: Any, **__: Any) -> None:
        start("fake", store=FakeStore(), rank=0, world_size=plan.ranks)

    def gathered(objects: list[Any], one: Any, *_: Any, **__: Any) -> None:
        objects[:] = [one for _ in objects]

    def gather(one: Any, objects: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if objects is not None:
            gathered(objects, one)

    def scattered(output: list[Any], objects: list[Any] | None, *_: Any, **__: Any) -> None:
        if objects:
            output[0] = objects[dist.get_rank()]

    nothing = answer(None)
    replaced: dict[str, Any] = {
        "init_process_group": init,
        "all_gather_object": gathered,
        "gather_object": gather,
        "scatter_object_list": scattered,
        "broadcast_object_list": nothing,
        "barrier": nothing,
        "monitored_barrier": nothing,
        "is_nccl_available": answer(True),
    }
    with patched({dist: replaced, dist.distributed_c10d: replaced}), _data_parallel():
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextmanager
def _data_parallel() -> Iterator[None]:
    """DistributedDataParallel over a fake process group."""
    kind = torch.nn.parallel.DistributedDataParallel
    make = kind.__init__

    def init(wrapped: Any, module: Any, *args: Any, init_sync: bool = True, **kwargs: Any) -> None:
        if init_sync:
            broadcast_parameters(module)
        for name in ("device_ids", "output_device"):
            kwargs.pop(name, None)
        make(wrapped, module, *args[2:], init_sync=False, **kwargs)
        send_to_nobody(wrapped)

    with patch.object(kind, "__init__", init):
        yield
