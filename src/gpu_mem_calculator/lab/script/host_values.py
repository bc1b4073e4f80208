"""Records a script's storages: those on the GPU are fake, and small ones on the host are real.

Where an operation's result has as many rows as its values say, all are chosen: fake values say so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter

from ..trace.recorder import Recorder
from ..trace.storages import HostStorages

aten = torch.ops.aten
Call = tuple[Any, Any, dict[str, Any]]


def _nonzero(func: Any, args: Any, kwargs: Any) -> Call:
    (x,) = args
    return aten.new_empty.default, (x, [x.numel(), x.ndim]), {"dtype": torch.int64}


def _masked_select(func: Any, args: Any, kwargs: Any) -> Call:
    x, mask = args
    return aten.new_empty.default, (x, [torch.broadcast_shapes(x.shape, mask.shape).numel()]), {}


def _unique(func: Any, args: Any, kwargs: Any) -> Call:
    return aten.new_empty.default, (args[0], [args[0].numel()]), {}


def _index(func: Any, args: Any, kwargs: Any) -> Call:
    """Masks become the indices of all their elements."""
    x, indices, *rest = args
    chosen: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            chosen += [
                index.new_empty([index.numel()], dtype=torch.int64) for _ in range(index.ndim)
            ]
        else:
            chosen.append(index)
    return func, (x, chosen, *rest), kwargs


SHAPES: dict[Any, Callable[[Any, Any, Any], Call]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique2.default: _unique,
}


SMALL = 4096  # elements; larger tensors of the host are fake if nothing computed their values
VALUELESS = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "normal")
)
"""Operations that make the first values of weights, of a mask or of random data."""


class ScriptStorages(HostStorages):
    """The host's storages; every real tensor is one."""

    @property
    def named(self) -> bool | None:
        """Whether the script names the host, True, or the GPU, False, in the call that runs."""
        return self._named

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in host memory."""
        return not _is_fake(tensor) or super().on_host(tensor)

    def makes_host(self, args: Any, kwargs: Any) -> bool:
        """Whether an operation allocates on the host: it names it, or all its tensors are there."""
        if self._named is not None:
            return self._named
        tensors = _tensors(args, kwargs)
        return bool(tensors) and all(map(self.on_host, tensors))


class ScriptRecorder(Recorder):
    """Records fake tensors, and runs operations on real ones really."""

    def __init__(self, cublas_bytes: int, mode: FakeTensorMode) -> None:
        super().__init__(cublas_bytes)
        self.mode = mode
        self.sides: ScriptStorages = ScriptStorages()

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors(args, kwargs)
        if not any(map(_is_fake, tensors)) and not self._begins_fake(func, tensors, args, kwargs):
            return func(*args, **kwargs)
        if func is aten.equal.default:
            return True  # as `==` of single numbers
        with self.mode:
            shape = SHAPES.get(func)
            if shape is not None:
                func, args, kwargs = shape(func, args, kwargs)
            return super()._dispatched(func, types, args, kwargs)

    def faked(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor on the host in place of a real one."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            fake: torch.Tensor = self.mode.from_tensor(tensor.detach())
        storage = fake.untyped_storage()
        key = storage._cdata
        self.sides.host[key] = "aten::empty"
        self._alive[key] = weakref.ref(storage, partial(self._freed, key))
        return fake

    def _begins_fake(self, func: Any, tensors: list[Any], args: Any, kwargs: Any) -> bool:
        """Whether an operation without a fake input makes a fake tensor."""
        if self.sides.named is not None and not self.sides.named:
            return func is not aten._local_scalar_dense.default
        if tensors:
            return False
        if func._schema.name not in VALUELESS:
            return False
        with torch._C._DisableTorchDispatch():
            like = func(*args, **{**kwargs, "device": "meta", "pin_memory": None})
        return bool(like.is_floating_point() and like.numel() > SMALL)


def _is_fake(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor)


def _tensors(args: Any, kwargs: Any) -> list[Any]:
    return [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
