"""Distinguishes GPU and host: what a program calls "cuda" and what it calls "cpu".

Every fake tensor is a CPU tensor (see __init__.py). This mode stands between a program and torch:
it removes the device names from each call, tells the recorder whether the call allocates on the GPU
or on the host, and returns the device names that a program on a GPU would get.
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

from .storages import HostStorages

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
COMPARE = checkpoint._default_meta_extractor


@cache
def _constructors() -> frozenset[Any]:
    """Functions that allocate on the default device where no device is named."""
    return frozenset(_device._device_constructors()) - {
        torch.empty_like,
        torch.full_like,
        torch.ones_like,
        torch.rand_like,
        torch.randint_like,
        torch.randn_like,
        torch.zeros_like,
    }


class DeviceNames(TorchFunctionMode):
    """A mode that answers a program's questions about devices as on a GPU."""

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
            torch._C._nn._parse_to: _parsed,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = self._special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        device = kwargs.get("device")
        if device is None and func in _constructors():
            device = _device.CURRENT_DEVICE or HOST
        if device is None or (isinstance(func, torch._ops.OpOverload) and _place(device) == HOST):
            return func(*args, **kwargs)  # below autograd, "cpu" is where the fake tensors are
        return self._make(func, args, kwargs, device)

    def _make(self, func: Any, args: Any, kwargs: dict[str, Any], device: Any) -> Any:
        """Run a call that names a device; page-locked memory is the host's."""
        place = _place(device)
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
        """Convert a tensor; between GPU and host it copies, which torch omits from CPU to CPU."""
        if place.type == "meta":
            return tensor.to(place, dtype or tensor.dtype)
        kwargs["copy"] = bool(kwargs.get("copy")) or self._device(tensor) != place
        kwargs.pop("non_blocking", None)
        with self.sides.making(host=place == HOST):
            return tensor.to(dtype or tensor.dtype, **kwargs)

    def _moved(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """`tensor.to(...)` with any of its signatures."""
        other = kwargs.pop("other", None)
        first, rest = (args[0], args[1:]) if args else (other, ())
        if isinstance(first, torch.Tensor):
            device, dtype = self._device(first), first.dtype
        elif isinstance(first, torch.dtype):
            device, dtype = kwargs.pop("device", None), first
        else:
            device = kwargs.pop("device", None) if first is None else first
            dtype = kwargs.pop("dtype", None)
            if rest and isinstance(rest[0], torch.dtype | None):
                dtype, rest = rest[0] or dtype, rest[1:]
        if len(rest) > 1:
            kwargs["copy"] = rest[1]
        return self._to(
            tensor, self._device(tensor) if device is None else _place(device), dtype, **kwargs
        )

    def _type(self, tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`tensor.type(...)`; the name of a type contains "cuda" for the GPU."""
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
        """An address for a fake tensor, which has none; storages differ by multiples of 512."""
        offset = tensor.storage_offset() * tensor.element_size()
        return int(tensor.untyped_storage()._cdata) * 512 + int(offset)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Switch the mode on, also for hooks in backward, where torch disables modes."""
        run, real = torch.autograd._engine_run_backward, FakeTensor.device.fget

        def engine(*args: Any, **kwargs: Any) -> Any:
            with self:
                return run(*args, **kwargs)

        def device(tensor: Any) -> torch.device:
            real_device: torch.device = real(tensor)
            by_program = torch._C._is_torch_function_mode_enabled()  # False where torch itself asks
            return self._named(tensor, real_device) if by_program else real_device

        with (
            patch.object(torch.autograd, "_engine_run_backward", engine),
            patch.object(FakeTensor, "device", property(device)),
            patch.dict(checkpoint._allowed_determinism_checks_to_fns, default=_compared_metadata),
            # A block that another CUDA stream used is free at once, as measured reserved bytes show
            patch.object(FakeTensor, "record_stream", lambda *_: None, create=True),
            self,
        ):
            yield


def _compared_metadata(tensor: Any) -> Any:
    """What checkpointing compares of a tensor and its recomputation, without this mode: only one of
    the two is seen inside a call.
    """
    with torch._C.DisableTorchFunction():
        return COMPARE(tensor)


def _parsed(*args: Any, **kwargs: Any) -> Any:
    """What a module's `to` reads from its arguments; a number is a GPU."""
    if args and isinstance(args[0], int):
        args = (torch.device("cuda", args[0]), *args[1:])
    return torch._C._nn._parse_to(*args, **kwargs)


def _place(device: Any) -> torch.device:
    parsed = GPU if isinstance(device, int) else torch.device(device)
    return GPU if parsed.type == "cuda" else parsed
