"""Writes down every storage that a torch program makes and frees, and who made it.

A dispatch mode sees each operation below autograd, on the tensors that really hold memory. A
storage is alive as long as Python's reference to it, which torch keeps with the storage itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode

from ..ledger.units import MIB
from ..replay.stream import AllocationStream
from . import shapes
from .host_storages import HostStorages
from .storage_makers import StorageMaker as StorageMaker
from .storage_makers import calling_line
from .workspaces import MATMULS, workspaces

SUM = torch.ops.aten.add.Tensor
WITH_BIAS = torch.ops.aten.addmm.default
DEVICE = torch.ops.prim.device.default
CPU = torch.device("cpu")
CUBLAS, CUBLAS_LT = "cuBLAS workspace", "cuBLASLt workspace"  # who made a handle's workspace


class Recorder(TorchDispatchMode):
    """Records storages on the fake CPU into a stream of allocations and frees."""

    def __init__(self, cublas_bytes: int) -> None:
        super().__init__()
        self._cublas_bytes = cublas_bytes
        self._handles: set[tuple[str, bool, int]] = set()
        self.sizes: list[int] = []
        self.events: list[int] = []
        self.streams: list[int] = []
        self.makers: list[StorageMaker] = []
        self.marks: list[tuple[int, str]] = []
        self.module = ""
        self._streams: dict[Any, int] = {}  # the first that a block is made on is the default
        self.empties: list[int] = []
        self.sides = HostStorages()
        self.ids: dict[int, int] = {}  # storage -> its number, while it is alive
        self._alive: dict[int, Any] = {}
        self._paused = 0
        self.sums: dict[int, int] = {}  # a sum of gradients -> the one it was added to
        self._forward: dict[int, tuple[str, str]] = {}  # autograd's number -> module, line

    def recorded(self) -> AllocationStream:
        """Everything so far, as the allocator sees it."""
        events, before = sums_in_place(self.events, self.sums)
        return AllocationStream(
            sizes=self.sizes, events=events, streams=self.streams,
            marks=[(before[at], name) for at, name in self.marks],
            empties=[before[at] for at in self.empties],
        )  # fmt: skip

    def mark(self, name: str) -> None:
        """The end of a phase."""
        self.marks.append((len(self.events), name))

    def make(self, size: int, op: str) -> int:
        """A block of memory that is no tensor's; the number it is freed by."""
        number = len(self.sizes)
        self.sizes.append(size)
        self.streams.append(self._stream())
        self.makers.append(self._maker(op))
        self.events.append(number)
        return number

    def _stream(self) -> int:
        """The stream that torch believes it is on; the CPU's do nothing, but are told apart."""
        return self._streams.setdefault(torch.cpu.current_stream(), len(self._streams))

    def free(self, number: int) -> None:
        """The end of a block."""
        self.events.append(~number)

    def empty_cache(self) -> None:
        """What is cached and not in use goes back to the driver."""
        self.empties.append(len(self.events))

    def alive_bytes(self) -> int:
        """What all tensors hold now."""
        return sum(self.sizes[number] for number in self.ids.values())

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return self.ids.get(local.untyped_storage()._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # names of devices are a program's: see places.py
            return self._dispatched(func, types, args, kwargs)

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is DEVICE:
            return getattr(args[0], "fake_device", CPU)
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it desugars into operations on its local tensor
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._scalar(args[0])
        result = shapes.result(func, args, kwargs or {})
        if self._paused or shapes.in_place(func):
            return result
        host = self.sides.makes_host(args, kwargs)
        for one, times in shapes.outputs(func, result):
            self._see(one, func, times, host)
        if host:
            return result
        if func is SUM and not torch.is_grad_enabled() and isinstance(args[1], torch.Tensor):
            self._summed(result, *args[:2])
        elif func in MATMULS:
            self._handle(func is WITH_BIAS)
        extra = [self.make(size, f"{func._schema.name} workspace")
                 for size in workspaces(func, args)]  # fmt: skip
        for number in extra:
            self.free(number)
        return result

    def _summed(self, result: torch.Tensor, old: Any, new: Any) -> None:
        """Remember that two gradients of one tensor were added: see `sums_in_place`.

        Not of a view: autograd keeps its base, so that the memory has another owner.
        """
        if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
            return  # a number and a tensor, in a layer that runs again
        if old.shape == new.shape and old.dtype == new.dtype and not old._is_view():
            total, before = self.number_of(result), self.number_of(old)
            if total is not None and before is not None:
                self.sums[total] = before

    def _handle(self, bias: bool) -> None:
        """cuBLAS's workspace: one for each thread and stream, made at its first matmul and kept;
        cuBLASLt, which adds a bias, has another of 1 MiB.

        Backward has a thread of its own on a GPU (CublasHandlePool.cpp).
        """
        thread = (torch._C._current_autograd_node() is not None, self._stream())
        wanted = {CUBLAS: self._cublas_bytes}
        if bias:
            wanted[CUBLAS_LT] = MIB
        for name, size in wanted.items():
            if (name, *thread) not in self._handles:
                self._handles.add((name, *thread))
                self.make(size, name)

    def _scalar(self, tensor: torch.Tensor) -> Any:
        """What `.item()` gives where there are no numbers: every check passes.

        `all` and `==` are true and all else false, so that a model takes the way it takes with full
        sequences and finite numbers.
        """
        number = self.number_of(tensor)
        on_host = self.sides.host.get(tensor.untyped_storage()._cdata, "")
        op = on_host if number is None else self.makers[number].op
        if tensor.dtype in (torch.bool, torch.uint8):
            return op.endswith(("all", "eq"))
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _see(self, tensor: torch.Tensor, func: Any, times: int, host: bool) -> None:
        if getattr(tensor, "fake_device", CPU) != CPU:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        if host:
            self.sides.host[key] = func._schema.name
            self._alive[key] = weakref.ref(storage, partial(self._gone, key))
            return
        size = storage.nbytes() * times
        if size == 0:
            return
        self._alive[key] = weakref.ref(storage, partial(self._gone, key))
        self.ids[key] = self.make(size, func._schema.name)

    def _gone(self, key: int, _: Any) -> None:
        self._alive.pop(key, None)
        self.sides.host.pop(key, None)
        number = self.ids.pop(key, None)
        if number is not None:
            self.free(number)

    def _maker(self, op: str) -> StorageMaker:
        node = torch._C._current_autograd_node()
        where, comm = calling_line()
        if node is None:
            self._forward[torch.autograd._get_sequence_nr() - 1] = (self.module, where)
            return StorageMaker(op, self.module, where, False, comm)
        module, made = self._forward.get(node._sequence_nr(), (self.module, where))
        return StorageMaker(op, module, made, True, comm)

    def resized(self, storage: Any, new: int, resize: Callable[[Any, int], Any]) -> Any:
        """`storage.resize_`, which FSDP2 frees and fills its buffers with."""
        key, old = storage._cdata, storage.nbytes()
        result = resize(storage, new)
        if key in self._alive and new != old:
            if key in self.ids:
                self.free(self.ids.pop(key))
            if new:
                self.ids[key] = self.make(new, "storage.resize_")
        return result

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs inside."""
        resize = torch.UntypedStorage.resize_
        propagate = {
            name: getattr(ShardingPropagator, name) for name in dir(ShardingPropagator)
            if name.startswith("_propagate_tensor_meta")
            or name == "propagate_op_sharding_non_cached"
        }  # fmt: skip

        def paused(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                self._paused += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._paused -= 1

            return call

        torch.UntypedStorage.resize_ = lambda s, n: self.resized(s, n, resize)
        for name, function in propagate.items():
            setattr(ShardingPropagator, name, paused(function))
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = resize
            for name, function in propagate.items():
                setattr(ShardingPropagator, name, function)


def sums_in_place(events: list[int], sums: dict[int, int]) -> tuple[list[int], list[int]]:
    """The events with sums of gradients written over their first term, and how many of them are
    left before each of the old ones.

    csrc/autograd/input_buffer.cpp adds in place where it holds the last reference, but never to
    a tensor that looks like a subclass, as fake ones do: where the first term is freed as soon as
    the sum is made, the sum takes its memory.
    """
    owner = memory_owners(events, sums)
    given = {sums[total] for total in owner}  # terms that gave their memory away
    found: list[int] = []
    before: list[int] = [0]
    for event in events:
        if event >= 0 and event not in owner:
            found.append(event)
        elif event < 0 and ~event not in given:
            found.append(~owner.get(~event, ~event))
        before.append(len(found))
    return found, before


def memory_owners(events: list[int], sums: dict[int, int]) -> dict[int, int]:
    """Sums that are written over a term, and whose memory they have."""
    found: dict[int, int] = {}
    for index, event in enumerate(events):
        term = sums.get(event, -1)
        if term >= 0 and _freed_next(events, index, term):
            found[event] = found.get(term, term)
    return found


def _freed_next(events: list[int], index: int, number: int) -> bool:
    """Whether a block is freed before another is made."""
    for event in islice(events, index + 1, None):
        if event >= 0:
            return False
        if ~event == number:
            return True
    return False
