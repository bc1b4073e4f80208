"""Finds the parameters, gradients and optimizer states of a script, whose model is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...ledger.ledger import GRAD, OPTIM, PARAM
from ..trace.memory_kinds import KindWatcher
from ..trace.recorder import Recorder


class StateWatcher(KindWatcher):
    """The kinds of the blocks of every module that is called and every optimizer that steps."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.roots: dict[int, Any] = {}  # modules that no other module called
        self.optimizers: dict[int, Any] = {}
        self.on_first_module: Callable[[], None] = lambda: None

    def mark(self, name: str) -> None:
        """End a phase, and set the kind of every block that is a state."""
        self.recorder.mark(name)
        for root in self.roots.values():
            for path, parameter in root.named_parameters():
                self._set_kind(parameter, PARAM, path)
                if parameter.grad is not None:
                    self._set_kind(parameter.grad, GRAD, path)
            for path, buffer in root.named_buffers():
                self._set_kind(buffer, PARAM, path)
        for optimizer in self.optimizers.values():
            for parameter, states in optimizer.state.items():
                for value in _tensors((parameter, states)):
                    self._set_kind(value, OPTIM, "")

    def parameters(self) -> list[Any]:
        """Every parameter of the modules that were called, once."""
        every = (p for root in self.roots.values() for p in root.parameters())
        return list({id(p): p for p in every}.values())

    def _on_outermost(self, module: Any) -> None:
        if id(module) in self._names:
            return
        if any(True for _ in module.parameters()):
            self.roots[id(module)] = module
            for name, part in module.named_modules():
                self._names.setdefault(id(part), name)
            self.on_first_module()


def _tensors(value: Any) -> Iterator[Any]:
    from torch.utils._pytree import tree_iter

    return (one for one in tree_iter(value) if isinstance(one, torch.Tensor))
