"""What backward runs again: nothing, some modules, some operations, or all of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...run.recompute import ATTENTION as KEEPS_ATTENTION
from ...run.recompute import EVERY_SECOND_MM
from ...run.run import Run
from ...training.engines import engine_row
from .clock import BlockClock
from .operators import ATTENTION, CORE, EXPERTS, MLP
from .step_seconds import Seconds
from .traffic import MemoryKernel

# Parts of recompute_modules: which matmuls run again, and which other kernels by their names.
MODULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "core_attn": ((CORE,), ("attn.",)),
    "layernorm": ((), ("norm",)),
    "mlp": ((MLP,), ("activation", "gate", "act", "mlp.")),
    "moe": ((MLP, EXPERTS), ("experts.", "moe.", "router.", "activation")),
    "moe_act": ((), ("experts.activation",)),
    "mla_up_proj": ((), ("mla.",)),
    "shared_experts": ((MLP,), ("activation",)),
    "attention": ((ATTENTION, CORE), ("attn.", "rotary")),
}

Recompute = Callable[..., Seconds]


def recomputed(run: Run, engine: str) -> Recompute:
    """A function that adds up what a layer runs again in backward, under its policy."""
    if run.recompute == "none":
        return lambda clock, matmuls, calls, kernels: 0.0
    if run.recompute == "op":
        return lambda *block: _by_operation(run, *block)
    if run.recompute == "full":
        stops = not engine_row(engine).megatron and run.rule.early_stop and not run.reentrant
        return lambda *block: _everything(stops, *block)
    modules = run.rule.modules or ("core_attn",)
    return lambda *block: _modules(modules, *block)


def _everything(
    stops: bool, clock: BlockClock, matmuls: Any, calls: Any, kernels: tuple[MemoryKernel, ...]
) -> Seconds:
    """All of forward; with early stop without the last matmul, whose result nothing needs."""
    left = [one for one in matmuls if not (stops and one.last)]
    others = kernels[:-1] if stops else kernels
    return clock.forward(left) + clock.attention(calls, backward=False) + clock.others(others)


def _by_operation(
    run: Run, clock: BlockClock, matmuls: Any, calls: Any, kernels: tuple[MemoryKernel, ...]
) -> Seconds:
    """All kernels but those whose results are kept: attention, or every second matmul."""
    again = clock.forward(matmuls)
    if EVERY_SECOND_MM in run.rule.keeps:
        again = again * 0.5
    kept = KEEPS_ATTENTION in run.rule.keeps
    attention = 0.0 if kept else clock.attention(calls, backward=False)
    return again + attention + clock.others(kernels)


def _modules(
    modules: tuple[str, ...],
    clock: BlockClock,
    matmuls: Any,
    calls: Any,
    kernels: tuple[MemoryKernel, ...],
) -> Seconds:
    """The matmuls and kernels of some modules."""
    parts = {part for name in modules for part in MODULES[name][0]}
    words = tuple(word for name in modules for word in MODULES[name][1])
    chosen = [k for k in kernels if any(word in k.name for word in words)]
    again = clock.forward([one for one in matmuls if one.part in parts]) + clock.others(chosen)
    return again + clock.attention(calls if CORE in parts else (), backward=False)
