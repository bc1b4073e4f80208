"""The figures of faq.md, all from one run: `gpu-mem-calc quick 7 --gpus 8 --engine deepspeed`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.estimates.margin import INFERENCE, QUANTIZED
from gpu_mem_calculator.training.engines import engine_row

PAGE = Path(__file__).with_name("faq.md")
GIB = 2**30
RUN: dict[str, Any] = {
    "model": {"name": "llama2-7b"},
    "engine": {"type": "deepspeed", "zero_stage": 2},
    "hardware": {"gpu_memory_gb": 80, "num_gpus": 8},
}
PASSES = {"a0.fwd": "forward", "a0.bwd": "backward", "opt": "optimizer step"}
ENGINES = {
    "pytorch_ddp": "one GPU, DDP",
    "fsdp": "FSDP2",
    "deepspeed": "DeepSpeed",
    "megatron_lm": "Megatron-LM",
    "megatron_deepspeed": "Megatron-DeepSpeed",
}


@cache
def estimate() -> Estimate:
    """The run that the page is about."""
    return full_estimate(RUN)


def gib(size: int) -> str:
    """A size in GiB."""
    return f"{size / GIB:.2f}"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    made = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in made)


def numbers() -> str:
    """Each figure, and what it is compared with."""
    one = estimate().result
    total = one.needs_bytes + one.margin_bytes + one.outside_torch_bytes
    return table(
        ["figure", "GiB", "compare it with"],
        [
            [
                "**needs + margin + memory outside PyTorch**",
                f"**{gib(total)}**",
                f"**your card: {gib(one.gpu_memory_bytes)} GiB on an 80 GB card**",
            ],
            ["allocated", gib(one.allocated_bytes), "`torch.cuda.max_memory_allocated()`"],
            ["reserved", gib(one.reserved_bytes), "`torch.cuda.max_memory_reserved()`"],
            ["nvidia-smi", gib(one.device_bytes), "`nvidia-smi`"],
        ],
    )


def gradients() -> str:
    """How much of each instant of a step is gradients."""
    found = estimate().result
    lines = [
        [
            f"**{at['title']} (the peak)**"
            if at["title"] == found.peak_instant
            else str(at["title"]),
            gib(at["bytes"]["grad"]),
            gib(sum(at["bytes"].values())),
        ]
        for at in found.timeline
        if at["phase"] in ("backward", "optimizer")
    ]
    return table(["instant", "gradients, GiB", "all tensors, GiB"], lines)


def steps() -> str:
    """The peaks of the first two steps."""
    phases = estimate().replayed.phases
    lines = [
        [f"step {step + 1}", *(gib(phases[f"s{step}.{name}"].peak_bytes) for name in PASSES)]
        for step in range(2)
    ]
    return table(["GiB allocated", *PASSES.values()], lines)


def margins() -> str:
    """The margin of each engine."""
    shares = {title: engine_row(name).margin for name, title in ENGINES.items()}
    shares["quantized weights (QLoRA)"] = QUANTIZED.share
    shares["inference with transformers"] = INFERENCE.share
    lines = [[title, f"{100 * share:.1f} %"] for title, share in shares.items()]
    return table(["", "margin, of needs"], lines)


def bodies() -> dict[str, str]:
    """What stands between the marks of the page."""
    return {"numbers": numbers(), "gradients": gradients(), "steps": steps(), "margins": margins()}
