"""The libraries that are changed when a script imports them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .hub_datasets import change_datasets
from .hub_models import change_configurations, change_models
from .hub_tokenizers import change_byte_pairs, change_tokenizers
from .kernels import change_generation, change_triton
from .on_import import changed_on_import

if TYPE_CHECKING:
    from .simulation import Simulation

CHANGES = {
    "transformers.configuration_utils": change_configurations,
    "transformers.modeling_utils": change_models,
    "transformers.models.auto.tokenization_auto": change_tokenizers,
    "transformers.generation.utils": change_generation,
    "tiktoken": change_byte_pairs,
    "triton": change_triton,
    "datasets": change_datasets,
}


def simulated_libraries(simulation: Simulation) -> AbstractContextManager[None]:
    """Models, tokenizers and data of the hub come from this machine alone."""
    return changed_on_import({name: make(simulation) for name, make in CHANGES.items()})
