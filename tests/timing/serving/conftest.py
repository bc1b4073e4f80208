"""A plain card, and presets on it."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.estimates.serving.speed import serving_replica
from gpu_mem_calculator.runfile.config import RunFile
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.serving.roofline import CardRates, ServingReplica
from gpu_mem_calculator.tools.read import read

CARD = CardRates(
    flops={"bf16": 1e15, "fp16": 1e15, "fp8": 2e15, "int8": 2e15},
    memory_bytes_per_second=4e12,
    link_bytes_per_second=4e11,
    link_seconds=1e-6,
)


def run_file(model: str, gpus: int = 1, **inference: Any) -> RunFile:
    """A preset served on some cards, by vLLM unless another engine is named."""
    return read(
        {
            "model": {"name": model},
            "inference": {"engine": "vllm", **inference},
            "hardware": {"gpu": "h200-141gb-sxm", "num_gpus": gpus},
        }
    ).file


def served(model: str, gpus: int = 1, card: CardRates = CARD, **inference: Any) -> ServingReplica:
    """The same as the roofline sees it."""
    return serving_replica(resolve(run_file(model, gpus, **inference)), card)
