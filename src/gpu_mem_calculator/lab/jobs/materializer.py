"""Memory for a model that was made on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary


class Materializer:
    """Gives the tensors of meta modules memory; a tensor that two modules share gets it once."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.made: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.kept: list[Any] = []  # meta tensors, so that no other takes their address

    def own_tensors(self, module: Any) -> None:
        """Give a module's own parameters and buffers memory, without those of its children."""
        import torch

        def parameter(old: Any, data: Any) -> Any:
            return torch.nn.Parameter(data, requires_grad=old.requires_grad)

        self._fill(module._parameters, parameter)
        self._fill(module._buffers, lambda old, data: data)

    def all_of(self, model: Any) -> None:
        """Give a whole model memory."""
        for module in model.modules():
            self.own_tensors(module)

    def _fill(self, tensors: dict[str, Any], keep: Callable[[Any, Any], Any]) -> None:
        import torch

        for name, old in tensors.items():
            if old is None or old.device.type != "meta":
                continue
            new = self.made.get(id(old))
            if new is None:
                self.kept.append(old)
                new = keep(old, torch.empty_like(old, device=self.device))
                self.made[id(old)] = new
            tensors[name] = new
