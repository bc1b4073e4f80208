"""Triton's kernels are not launched: their wrappers allocate what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .simulation import Simulation


def change_triton(simulation: Simulation) -> Any:
    """A change of Triton: a launch does nothing."""

    def change(module: Any) -> None:
        def launch(*_: Any, **__: Any) -> None:
            return None

        for kind in (
            module.runtime.jit.JITFunction,
            module.runtime.autotuner.Autotuner,
            module.runtime.autotuner.Heuristics,
        ):
            simulation.replace(kind, "run", launch)

    return change


def change_generation(simulation: Simulation) -> Any:
    """A change of transformers' `generate`: it runs to its last token."""
    from ..trace.huggingface import simulated_generate

    def change(module: Any) -> None:
        simulation.stack.enter_context(simulated_generate())

    return change
