"""Checks that a record of a module counts every parameter once."""

from __future__ import annotations

from math import prod
from typing import Any

from ...runfile.text.errors import InputError
from .module_parts import ModuleParts


def check_layers(model: Any, stack: list[Any], title: str) -> None:
    """Raise for a module without a list of layers, or with a weight that has two names."""
    if not stack:
        fix = "put them into a torch.nn.ModuleList or a torch.nn.Sequential"
        raise InputError(f"{title}: the module has no list of layers; {fix}")
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = names.setdefault(id(parameter), name)
        if other != name:
            why = "whose gradients wait for each other; trace it, or untie them"
            raise InputError(f"{title}: {other} and {name} are one weight, {why}")


def check_count(model: Any, parts: ModuleParts, title: str) -> None:
    """Raise where the parts have another number of parameters than the module trains."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    every_part = (parts.before, *(parts.layers[n] for n in parts.order), parts.after)
    counted = sum(prod(shape) for part in every_part for _, shape in part.weights)
    if counted != trained:
        counts = f"its layers run with {counted:,} parameters and it trains {trained:,}"
        why = "a module that several layers call has no layer to be counted in; trace it"
        raise InputError(f"{title}: {counts}; {why}")
