"""The GPU of this machine, read in a child process: a process that started CUDA cannot fork."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from ...ledger.extras import install
from ...runfile.text.errors import InputError
from .child_process import Tell, run_in_child

NO_TORCH = (
    f"measure runs the job with torch, which is not installed: {install('measure')}; "
    "gpu-mem-calc calculate needs neither torch nor a GPU"
)
NO_GPU = "measure needs a CUDA GPU, and {why}; gpu-mem-calc trace runs the same job without one"
HEAVY = (
    "torch",
    "torch.distributed.fsdp",
    "torch.testing._internal.distributed.fake_pg",
    "transformers.models.auto.modeling_auto",
)


class DriverCard(Struct, frozen=True, kw_only=True):
    """One GPU as the driver reports it."""

    name: str
    memory_bytes: int


def require_torch() -> None:
    """Raise a sentence where torch is missing, or was built without CUDA."""
    if find_spec("torch") is None:
        raise InputError(NO_TORCH)
    if import_module("torch").version.cuda is None:
        raise InputError(NO_GPU.format(why="this torch was built without CUDA"))


def find_card() -> DriverCard:
    """The GPU that measurements run on; raises a sentence where there is none."""
    require_torch()
    outcome = run_in_child(_look, None, 120.0, lambda _: None)
    if outcome.error:
        raise InputError(NO_GPU.format(why=f"CUDA does not start ({outcome.error})"))
    if outcome.value is None:
        raise InputError(NO_GPU.format(why="this machine shows none"))
    return DriverCard(**outcome.value)


def _look(_: Any, tell: Tell) -> dict[str, Any] | None:
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return None
    return {"name": torch.cuda.get_device_name(), "memory_bytes": torch.cuda.mem_get_info()[1]}


def import_once() -> None:
    """Import what every case needs before forking; none of it starts CUDA."""
    for name in HEAVY:
        try:
            import_module(name)
        except ModuleNotFoundError:
            continue  # the job reports what it lacks when it needs it
