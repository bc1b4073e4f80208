"""GPU and host kept apart: what a program calls "cuda" and what it calls "cpu".

Every fake tensor claims to be on the CPU (see __init__.py). This mode stands between a program and
torch: it takes the names of devices out of each call, tells the recorder which side the call makes
its tensors on, and answers with the names that a program on a GPU would hear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _device, checkpoint

from .host_storages import HostStorages

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
COMPARE = checkpoint._default_meta_extractor


@cache
def _constructors() -> frozenset[Any]:
    """Functions that make a tensor on the default device where none is named."""
    return frozenset(_device._device_constructors()) - {
        torch.empty_like, torch.full_like, torch.ones_like, torch.rand_like, torch.randint_like,
        torch.randn_like, torch.zeros_like,
    }  # fmt: skip


class DeviceNames(TorchFunctionMode):
    """Names of devices, and what torch on a CPU would say of them."""

    def __init__(self, sides: HostStorages) -> None:
        super().__init__()
        self.sides = sides
        self._special: dict[Any, Callable[..., Any]] = {
            torch.Tensor.device.__get__: self._device,
            torch.Tensor.is_cuda.__get__: lambda x: self._device(x) == GPU,
            torch.Tensor.is_cpu.__get__: lambda x: self._device(x) == HOST,
            torch.Tensor.get_device: lambda x: 0 if self._device(x) == GPU else -1,
            torch.Tensor.cpu: lambda x, **_: self._to(x, HOST),
            torch.Tensor.cuda: lambda x, *_, **__: self._to(x, GPU),
            torch.Tensor.to: self._moved,
            torch.Tensor.type: self._type,
            torch.Tensor.pin_memory: lambda x, *_: self._pinned(x),
            torch.Tensor.is_pinned: lambda x, *_: self._device(x) == HOST,
            torch.Tensor.data_ptr: self._address,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = self._special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        named = kwargs.get("device")
        if named is None and func in _constructors():
            named = _device.CURRENT_DEVICE or HOST
        if named is None:
            return func(*args, **kwargs)
        return self._make(func, args, kwargs, named)

    def _make(self, func: Any, args: Any, kwargs: dict[str, Any], named: Any) -> Any:
        """A call whose tensors are made where it says; page-locked memory is the host's."""
        place = _place(named)
        if place.type == "meta":
            return func(*args, **kwargs)
        kwargs = {**kwargs, "device": "cpu"}
        kwargs.pop("pin_memory", None)
        with self.sides.making(host=place == HOST):
            return func(*args, **kwargs)

    def _device(self, tensor: Any) -> torch.device:
        return self._named(tensor, tensor.device)

    def _named(self, tensor: Any, real: torch.device) -> torch.device:
        if real.type != "cpu":
            return real
        return HOST if self.sides.on_host(tensor) else GPU

    def _to(self, tensor: Any, place: torch.device, dtype: Any = None, **kwargs: Any) -> Any:
        """A copy where the other side is meant, which torch would not make from CPU to CPU."""
        if place.type == "meta":
            return tensor.to(place, dtype or tensor.dtype)
        kwargs["copy"] = bool(kwargs.get("copy")) or self._device(tensor) != place
        kwargs.pop("non_blocking", None)
        with self.sides.making(host=place == HOST):
            return tensor.to(dtype or tensor.dtype, **kwargs)

    def _moved(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """`tensor.to(...)`, in each of its forms."""
        other = kwargs.pop("other", None)
        first, rest = (args[0], args[1:]) if args else (other, ())
        if isinstance(first, torch.Tensor):
            named, dtype = self._device(first), first.dtype
        elif isinstance(first, torch.dtype):
            named, dtype = kwargs.pop("device", None), first
        else:
            named = kwargs.pop("device", None) if first is None else first
            dtype = kwargs.pop("dtype", None)
            if rest and isinstance(rest[0], torch.dtype | None):
                dtype, rest = rest[0] or dtype, rest[1:]
        if len(rest) > 1:
            kwargs["copy"] = rest[1]
        return self._to(tensor, self._device(tensor) if named is None else _place(named), dtype,
                        **kwargs)  # fmt: skip

    def _type(self, tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`tensor.type()`, whose name tells the side."""
        if isinstance(dtype, torch.dtype):
            return self._to(tensor, self._device(tensor), dtype)
        if dtype is not None:
            return tensor.type(dtype, *args, **kwargs)
        name: str = tensor.type()
        return name.replace("torch.", "torch.cuda.") if self._device(tensor) == GPU else name

    def _pinned(self, tensor: Any) -> Any:
        with self.sides.making(host=True):
            return tensor.clone()

    def _address(self, tensor: Any) -> int:
        """Fake tensors have none; a multiple of 512, as the allocator's are, tells them apart."""
        offset = tensor.storage_offset() * tensor.element_size()
        return int(tensor.untyped_storage()._cdata) * 512 + int(offset)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """On, also in hooks that run in backward, from which torch takes its modes away."""
        run, real = torch.autograd._engine_run_backward, FakeTensor.device.fget

        def engine(*args: Any, **kwargs: Any) -> Any:
            with self:
                return run(*args, **kwargs)

        def device(tensor: Any) -> torch.device:
            found: torch.device = real(tensor)
            asked = torch._C._is_torch_function_mode_enabled()  # by the program, not by torch
            return self._named(tensor, found) if asked else found

        with (
            patch.object(torch.autograd, "_engine_run_backward", engine),
            patch.object(FakeTensor, "device", property(device)),
            patch.dict(checkpoint._allowed_determinism_checks_to_fns, default=_compared_metadata),
            # A block that another stream used is free at once: what measured runs reserve says so
            patch.object(FakeTensor, "record_stream", lambda *_: None, create=True), self,
        ):  # fmt: skip
            yield


def _compared_metadata(tensor: Any) -> Any:
    """What checkpointing compares of a tensor and its second making, only one of which it sees in
    the middle of a call.
    """
    with torch._C.DisableTorchFunction():
        return COMPARE(tensor)


def _place(named: Any) -> torch.device:
    device = GPU if isinstance(named, int) else torch.device(named)
    return GPU if device.type == "cuda" else device
