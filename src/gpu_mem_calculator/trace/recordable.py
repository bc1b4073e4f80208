"""What a module must be so that a record of it counts every parameter once."""

from __future__ import annotations

from math import prod
from typing import Any

from ..core.errors import InputError
from .module_parts import ModuleParts


def check_layers(model: Any, stack: list[Any], title: str) -> None:
    """Refuse a module without a list of layers, or with one weight under two names."""
    if not stack:
        raise InputError(
            [
                f"{title}: the module has no list of layers; put them into a "
                "torch.nn.ModuleList or a torch.nn.Sequential"
            ]
        )
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = names.setdefault(id(parameter), name)
        if other != name:
            raise InputError(
                [
                    f"{title}: {other} and {name} are one weight, whose gradients wait "
                    "for each other; trace it, or untie them"
                ]
            )


def check_count(model: Any, found: ModuleParts, title: str) -> None:
    """Refuse a record whose parameters are not as many as the module trains."""
    own = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parts = (found.before, *(found.layers[n] for n in found.order), found.after)
    counted = sum(prod(shape) for part in parts for _, shape in part.weights)
    if counted != own:
        raise InputError(
            [
                f"{title}: its layers run with {counted:,} parameters and it trains "
                f"{own:,}; a module that several layers call has no layer to be "
                "counted in; trace it"
            ]
        )
