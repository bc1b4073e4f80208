"""The environment of a measurement: the card, and the versions of the packages that ran."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Packages that change memory: distribution name -> module name.
PACKAGES = {
    "transformers": "transformers",
    "peft": "peft",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "megatron-core": "megatron.core",
    "bitsandbytes": "bitsandbytes",
    "transformer-engine": "transformer_engine",
    "flash-attn": "flash_attn",
    "triton": "triton",
}
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
DRIVER = Path("/proc/driver/nvidia/version")


def card() -> dict[str, Any]:
    """The names of the card, its driver version and torch's."""
    torch = import_module("torch")
    return {
        "gpu": torch.cuda.get_device_name(),
        **({"driver": number} if (number := driver()) else {}),
        "torch": torch.__version__,
    }


def driver(path: Path = DRIVER) -> str:
    """The version of NVIDIA's driver, as the kernel reports it; empty where it does not."""
    try:
        words = path.read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def versions() -> dict[str, str]:
    """Versions of the packages that this process has loaded."""
    loaded = {}
    for package, module in PACKAGES.items():
        if module in sys.modules:
            try:
                loaded[package] = version(package)
            except PackageNotFoundError:
                module_version = getattr(sys.modules[module], "__version__", None)
                loaded[package] = str(module_version) if module_version else "unknown"
    return loaded


def allocator_setting() -> str | None:
    """The allocator's settings of the environment, or None."""
    return next((value for name in SETTINGS if (value := os.environ.get(name))), None)
