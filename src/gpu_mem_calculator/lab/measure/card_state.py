"""The state of the card and of the host while steps are timed: clocks, power, CPU."""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"
SM, MEMORY = 1, 2  # nvmlClockType_t
CPU_INFO = Path("/proc/cpuinfo")


def card_state(cuda: Any, library: str = NVML) -> dict[str, Any]:
    """Clocks in MHz and power in watts, now; empty without NVML."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return {}
    handle = ctypes.c_void_p()
    uuid = f"GPU-{cuda.get_device_properties(cuda.current_device()).uuid}"
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return {}

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
