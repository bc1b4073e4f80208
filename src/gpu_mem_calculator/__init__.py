"""The GPU memory that it takes to train or serve a language model."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes as long to import as all of bare Python's start
if TYPE_CHECKING:
    from typing import Any

    from .advice.diagnosis.diagnose import diagnose
    from .advice.planner.asking.ask import plan
    from .estimates.calculator import GPUMemoryCalculator, estimate
    from .estimates.published.estimator import Estimator
    from .estimates.published.zero_tables import (
        estimate_zero2_model_states_mem_needs,
        estimate_zero2_model_states_mem_needs_all_cold,
        estimate_zero2_model_states_mem_needs_all_live,
        estimate_zero3_model_states_mem_needs,
        estimate_zero3_model_states_mem_needs_all_cold,
        estimate_zero3_model_states_mem_needs_all_live,
    )
    from .estimates.sweep import sweep
    from .lab.module_memory import estimate_memory
    from .report.in_program import explain_oom, oom_callback
    from .runfile.text.errors import InputError

__version__ = "0.9.0"

_HOME = {
    "Estimator": "estimates.published.estimator",
    "GPUMemoryCalculator": "estimates.calculator",
    "InputError": "runfile.text.errors",
    "diagnose": "advice.diagnosis.diagnose",
    "estimate": "estimates.calculator",
    "estimate_memory": "lab.module_memory",
    "estimate_zero2_model_states_mem_needs": "estimates.published.zero_tables",
    "estimate_zero2_model_states_mem_needs_all_cold": "estimates.published.zero_tables",
    "estimate_zero2_model_states_mem_needs_all_live": "estimates.published.zero_tables",
    "estimate_zero3_model_states_mem_needs": "estimates.published.zero_tables",
    "estimate_zero3_model_states_mem_needs_all_cold": "estimates.published.zero_tables",
    "estimate_zero3_model_states_mem_needs_all_live": "estimates.published.zero_tables",
    "explain_oom": "report.in_program",
    "load_ipython_extension": "cli.notebook",
    "oom_callback": "report.in_program",
    "plan": "advice.planner.asking.ask",
    "sweep": "estimates.sweep",
}

__all__ = [
    "Estimator",
    "GPUMemoryCalculator",
    "InputError",
    "__version__",
    "diagnose",
    "estimate",
    "estimate_memory",
    "estimate_zero2_model_states_mem_needs",
    "estimate_zero2_model_states_mem_needs_all_cold",
    "estimate_zero2_model_states_mem_needs_all_live",
    "estimate_zero3_model_states_mem_needs",
    "estimate_zero3_model_states_mem_needs_all_cold",
    "estimate_zero3_model_states_mem_needs_all_live",
    "explain_oom",
    "oom_callback",
    "plan",
    "sweep",
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
