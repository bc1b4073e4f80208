"""The GPU and the host of this machine, and their state while steps are timed: clocks, power, CPU.

The GPU is looked for in a child process: a process that started CUDA cannot fork.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...ledger.extras import install
from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables
from .child_process import Tell, run_in_child

NO_TORCH = (
    f"measure runs the job with torch, which is not installed: {install('measure')}; "
    "gpu-mem-calc calculate needs neither torch nor a GPU"
)
NO_GPU = "measure needs a CUDA GPU, and {why}; gpu-mem-calc trace runs the same job without one"
NVML = "libnvidia-ml.so.1"
SM, MEMORY = 1, 2  # nvmlClockType_t
CPU_INFO = Path("/proc/cpuinfo")
HEAVY: list[str] = tables(__file__)["heavy"]


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


def driver_card(cuda: Any, library: str = NVML) -> tuple[Any, Any] | None:
    """NVML and its handle of the current card; None without NVML."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    uuid = f"GPU-{cuda.get_device_properties(cuda.current_device()).uuid}"
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    return nvml, handle


def card_state(cuda: Any, library: str = NVML) -> dict[str, Any]:
    """Clocks in MHz and power in watts, now; empty without NVML."""
    found = driver_card(cuda, library)
    if found is None:
        return {}
    nvml, handle = found

    def read(function: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        failed = getattr(nvml, function)(handle, *arguments, ctypes.byref(value))
        return None if failed else int(value.value)

    clocks = {
        "sm_clock_mhz": read("nvmlDeviceGetClockInfo", SM),
        "memory_clock_mhz": read("nvmlDeviceGetClockInfo", MEMORY),
    }
    power = {
        "power_watts": read("nvmlDeviceGetPowerUsage"),
        "power_limit_watts": read("nvmlDeviceGetEnforcedPowerLimit"),
    }
    watts = {name: value and round(value / 1000) for name, value in power.items()}
    return {name: value for name, value in {**clocks, **watts}.items() if value is not None}


def host_state(path: Path = CPU_INFO) -> dict[str, Any]:
    """The model of the CPU, the cores that this process may use, and torch's threads."""
    known: dict[str, Any] = {"cpu": cpu_model(path), "cpu_cores": _cores()}
    known["cpu_threads"] = import_module("torch").get_num_threads()
    return {name: value for name, value in known.items() if value}


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 0


def cpu_model(path: Path = CPU_INFO) -> str:
    """The model's name as the kernel reports it; empty where it does not."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""
