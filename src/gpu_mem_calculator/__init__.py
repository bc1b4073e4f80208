"""The GPU memory that it takes to train or serve a language model."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes as long to import as all of bare Python's start
if TYPE_CHECKING:
    from typing import Any

    from .core.calculator import GPUMemoryCalculator, estimate
    from .core.errors import InputError
    from .planner.asking.ask import plan
    from .published.estimator import Estimator
    from .published.zero_tables import (
        estimate_zero2_model_states_mem_needs,
        estimate_zero2_model_states_mem_needs_all_cold,
        estimate_zero2_model_states_mem_needs_all_live,
        estimate_zero3_model_states_mem_needs,
        estimate_zero3_model_states_mem_needs_all_cold,
        estimate_zero3_model_states_mem_needs_all_live,
    )

__version__ = "0.9.0"

_HOME = {
    "Estimator": "published.estimator",
    "GPUMemoryCalculator": "core.calculator",
    "InputError": "core.errors",
    "estimate": "core.calculator",
    "estimate_zero2_model_states_mem_needs": "published.zero_tables",
    "estimate_zero2_model_states_mem_needs_all_cold": "published.zero_tables",
    "estimate_zero2_model_states_mem_needs_all_live": "published.zero_tables",
    "estimate_zero3_model_states_mem_needs": "published.zero_tables",
    "estimate_zero3_model_states_mem_needs_all_cold": "published.zero_tables",
    "estimate_zero3_model_states_mem_needs_all_live": "published.zero_tables",
    "plan": "planner.asking.ask",
}

__all__ = [
    "Estimator",
    "GPUMemoryCalculator",
    "InputError",
    "__version__",
    "estimate",
    "estimate_zero2_model_states_mem_needs",
    "estimate_zero2_model_states_mem_needs_all_cold",
    "estimate_zero2_model_states_mem_needs_all_live",
    "estimate_zero3_model_states_mem_needs",
    "estimate_zero3_model_states_mem_needs_all_cold",
    "estimate_zero3_model_states_mem_needs_all_live",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used, so that starting costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    """The names of the module, also of what is not loaded yet."""
    return sorted({*globals(), *__all__})
