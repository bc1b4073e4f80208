"""Where a measurement was made: the card, and the versions of what ran."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# What changes memory, by its name as a package and as a module.
PACKAGES = {
    "transformers": "transformers", "peft": "peft", "accelerate": "accelerate",
    "deepspeed": "deepspeed", "megatron-core": "megatron.core", "bitsandbytes": "bitsandbytes",
    "transformer-engine": "transformer_engine", "flash-attn": "flash_attn", "triton": "triton",
}  # fmt: skip
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
DRIVER = Path("/proc/driver/nvidia/version")


def card() -> dict[str, Any]:
    """The card, its driver, and torch."""
    torch = import_module("torch")
    return {
        "gpu": torch.cuda.get_device_name(),
        **({"driver": number} if (number := driver()) else {}),
        "torch": torch.__version__,
    }


def driver(path: Path = DRIVER) -> str:
    """The version of NVIDIA's driver, where the kernel shows it."""
    try:
        words = path.read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def versions() -> dict[str, str]:
    """The packages that this process has loaded."""
    found = {}
    for package, module in PACKAGES.items():
        if module in sys.modules:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                own = getattr(sys.modules[module], "__version__", None)
                found[package] = str(own) if own else "unknown"
    return found


def allocator_setting() -> str | None:
    """The allocator's settings as the user's shell has them."""
    return next((value for name in SETTINGS if (value := os.environ.get(name))), None)
