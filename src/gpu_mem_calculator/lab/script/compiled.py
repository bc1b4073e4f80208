"""torch.compile without compilation: the code runs as it is written, and the report says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

if TYPE_CHECKING:
    from .simulation import Simulation

NOTE = (
    "torch.compile was not simulated: the code ran uncompiled, which keeps more tensors for "
    "backward than a compiled one"
)


@contextmanager
def uncompiled(simulation: Simulation) -> Iterator[None]:
    """torch.compile returns what it is given."""

    def compile_(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile_
        if isinstance(model, torch.nn.Module):
            simulation.note(NOTE)
            return model

        @wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            simulation.note(NOTE)  # libraries compile functions that a script may never call
            return model(*args, **kwargs)

        return call

    def compile_module(module: Any, *_: Any, **__: Any) -> None:
        simulation.note(NOTE)

    with (
        patch.object(torch, "compile", compile_),
        patch.object(torch.nn.Module, "compile", compile_module),
    ):
        yield
