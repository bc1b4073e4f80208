"""Values of tensors that have none, where a script reads them: ones, and true where it checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .host_values import ScriptRecorder


@contextmanager
def readable(recorder: ScriptRecorder) -> Iterator[None]:
    """`numpy`, `tolist` and their like work on fake tensors; parameters are always fake."""
    numpy, tolist, formats = torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__format__
    new = torch.nn.Parameter.__new__

    def real(tensor: Any) -> Any:
        """A real tensor of the same shape and dtype."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            one = recorder._scalar(tensor) if tensor.dtype == torch.bool else 1
            return torch.full(tuple(tensor.shape), one, dtype=tensor.dtype, device="cpu")

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, torch.nn.Parameter) and data.device.type == "cpu":
            data = recorder.faked(data)
        return new(cls, data, requires_grad)

    def step(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)  # the fake gradients are finite

    def formatted(tensor: Any, text: str) -> str:
        one = isinstance(tensor, FakeTensor) and tensor.dim() == 0
        return format(tensor.item(), text) if one else formats(tensor, text)

    patches = [
        (torch.Tensor, "__format__", formatted),
        (torch.Tensor, "numpy", lambda t, **kw: numpy(real(t), **kw)),
        (torch.Tensor, "tolist", lambda t: tolist(real(t))),
        (torch.Tensor, "__array__", lambda t, dtype=None: numpy(real(t).detach())),
        (torch.nn.Parameter, "__new__", staticmethod(parameter)),
        (torch.amp.GradScaler, "_maybe_opt_step", step),
    ]
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(patch.object(owner, name, value))
        yield
