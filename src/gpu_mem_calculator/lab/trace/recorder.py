"""Records every storage that a torch program allocates and frees, and what allocated it.

A dispatch mode sees each operation below autograd, on the tensors that own memory. A storage is
alive as long as its Python object, which torch keeps as long as the storage. Operations whose shape
function in torch is slow or missing get their results here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode

from ...ledger.units import MIB
from ...pytorch.replay.stream import AllocationStream
from ...tools.translation.arguments import tables
from .storages import HostStorages, StorageMaker, calling_line
from .workspaces import MATMULS, workspaces

DROPOUT = torch.ops.aten.native_dropout.default
LAYER_NORM = torch.ops.aten.native_layer_norm.default
GROUPED = torch.ops.aten._grouped_mm.default
COUNTS = torch.ops.aten.histc.default  # on integers, which only a GPU supports
SUM = torch.ops.aten.add.Tensor
SCATTERED = torch.ops.aten.scatter_add.default  # gather's backward adds in place to real tensors
WITH_BIAS = torch.ops.aten.addmm.default
DEVICE = torch.ops.prim.device.default
CPU = torch.device("cpu")
CUBLAS, CUBLAS_LT = "cuBLAS workspace", "cuBLASLt workspace"  # the `op` of a handle's workspace


# Of DTensors, with tensors of its own that hold nothing.
PROPAGATES = ("_propagate_tensor_meta", "propagate_op_sharding_non_cached")
RESHAPING = frozenset(tables(__file__)["reshaping"])


def shaped_result(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation, with the right shape."""
    if in_place(func):
        return args[0] if func._schema.returns else None
    if func is GROUPED and args[0].dtype != torch.bfloat16:
        return _grouped_matmul(*args, **kwargs)
    if func is COUNTS and not args[0].is_floating_point():
        return args[0].new_empty(args[1])
    return func(*args, **kwargs)


@cache
def in_place(func: Any) -> bool:
    """Whether an operation writes into its first argument and allocates nothing.

    It is skipped: fake tensors have no values, and torch takes milliseconds where the argument is a
    list of every parameter.
    """
    name, first = func._schema.name, func._schema.arguments[:1]
    if not (name.startswith("aten::") and name.endswith("_") and first) or name in RESHAPING:
        return False
    alias = first[0].alias_info
    return alias is not None and alias.is_write


def outputs(func: Any, result: Any) -> Iterator[tuple[Any, int]]:
    """The tensors that an operation allocated, in CUDA's order, each with the factor by which it is
    larger on a GPU than on the CPU.

    Dropout makes its mask first (Dropout.cu); a layer norm's statistics are fp32 on a GPU
    (layer_norm_kernel.cu), and of the input's dtype here.
    """
    if isinstance(result, torch.Tensor):
        yield result, 1
        return
    if not isinstance(result, tuple | list):
        return
    tensors = [tensor for tensor in result if isinstance(tensor, torch.Tensor)]
    if func is DROPOUT:
        tensors.reverse()
    for index, tensor in enumerate(tensors):
        yield tensor, 4 // tensor.element_size() if func is LAYER_NORM and index else 1


def _grouped_matmul(left: Any, right: Any, offs: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """Grouped matmuls of experts in other dtypes than bf16, which torch's shape function refuses
    (_meta_registrations.py, _meta_grouped_mm_common); a GPU runs the groups one by one.
    """
    shape = [left.shape[-2], right.shape[-1]]
    if left.ndim == right.ndim == 2:  # the gradient of the weights: one matrix for each group
        shape.insert(0, offs.shape[0])
    return left.new_empty(shape)


class Recorder(TorchDispatchMode):
    """Records storages of fake tensors as a stream of allocations and frees."""

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
        self._streams: dict[Any, int] = {}  # the first one with a block is the default
        self.empties: list[int] = []
        self.sides = HostStorages()
        self.ids: dict[int, int] = {}  # storage -> number of its block, while it is alive
        self._alive: dict[int, Any] = {}
        self._paused = 0
        self.sums: dict[int, int] = {}  # a sum of gradients -> its first term
        self._forward: dict[int, tuple[str, str]] = {}  # autograd's sequence number -> module, line

    def recorded(self) -> AllocationStream:
        """The stream so far, as the allocator would see it."""
        events, before = sums_in_place(self.events, self.sums)
        return AllocationStream.of(
            sizes=self.sizes,
            events=events,
            streams=self.streams,
            marks=[(before[at], name) for at, name in self.marks],
            empties=[before[at] for at in self.empties],
        )

    def mark(self, name: str) -> None:
        """End a phase."""
        self.marks.append((len(self.events), name))

    def make(self, size: int, op: str) -> int:
        """Allocate a block; returns the number that frees it."""
        number = len(self.sizes)
        self.sizes.append(size)
        self.streams.append(self._stream())
        self.makers.append(self._maker(op))
        self.events.append(number)
        return number

    def _stream(self) -> int:
        """The number of torch's current CPU stream: it does nothing, but is distinct."""
        return self._streams.setdefault(torch.cpu.current_stream(), len(self._streams))

    def free(self, number: int) -> None:
        """Free a block."""
        self.events.append(~number)

    def empty_cache(self) -> None:
        """Record that the allocator returns its unused segments to the driver."""
        self.empties.append(len(self.events))

    def alive_bytes(self) -> int:
        """Bytes of all storages that are alive."""
        return sum(self.sizes[number] for number in self.ids.values())

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's block; None where it has none."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return self.ids.get(local.untyped_storage()._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # device names are for programs: see device_names.py
            return self._dispatched(func, types, args, kwargs)

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is DEVICE:
            return getattr(args[0], "fake_device", CPU)
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it desugars into operations on its local tensor
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._scalar(args[0])
        result = shaped_result(func, args, kwargs or {})
        if self._paused or in_place(func):
            return result
        host = self.sides.makes_host(args, kwargs)
        for one, times in outputs(func, result):
            self._record_output(one, func, times, host)
        if host:
            return result
        if func is SUM and not torch.is_grad_enabled() and isinstance(args[1], torch.Tensor):
            self._note_sum(result, *args[:2])
        elif func is SCATTERED and not torch.is_grad_enabled():
            self._note_sum(result, args[0], args[0])
        elif func in MATMULS:
            self.matmul(with_bias=func is WITH_BIAS)
        extra = [
            self.make(size, f"{func._schema.name} workspace") for size in workspaces(func, args)
        ]
        for number in extra:
            self.free(number)
        return result

    def _note_sum(self, result: torch.Tensor, old: Any, new: Any) -> None:
        """Note that two gradients of one tensor were added: see `sums_in_place`.

        Not for a view: autograd keeps its base alive, which owns the memory.
        """
        if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
            return  # a number and a tensor, in a layer that is recomputed
        if old.shape == new.shape and old.dtype == new.dtype and not old._is_view():
            total, before = self.number_of(result), self.number_of(old)
            if total is not None and before is not None:
                self.sums[total] = before

    def matmul(self, *, with_bias: bool) -> None:
        """Allocate cuBLAS's workspace at the first matmul of each thread and CUDA stream; it is
        never freed. cuBLASLt, which adds a bias, has another of 1 MiB.

        On a GPU, backward runs in a separate thread (CublasHandlePool.cpp).
        """
        thread = (torch._C._current_autograd_node() is not None, self._stream())
        sizes = {CUBLAS: self._cublas_bytes}
        if with_bias:
            sizes[CUBLAS_LT] = MIB
        for name, size in sizes.items():
            if (name, *thread) not in self._handles:
                self._handles.add((name, *thread))
                self.make(size, name)

    def _scalar(self, tensor: torch.Tensor) -> Any:
        """The result of `.item()` on a fake tensor, so that every check passes.

        `all` and `==` are true and other booleans false: a model then takes the branch for full
        sequences and finite numbers.
        """
        number = self.number_of(tensor)
        on_host = self.sides.host.get(tensor.untyped_storage()._cdata, "")
        op = on_host if number is None else self.makers[number].op
        if tensor.dtype in (torch.bool, torch.uint8):
            return op.endswith(("all", "eq"))
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _record_output(self, tensor: torch.Tensor, func: Any, times: int, host: bool) -> None:
        if getattr(tensor, "fake_device", CPU) != CPU:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        if host:
            self.sides.host[key] = func._schema.name
            self._alive[key] = weakref.ref(storage, partial(self._freed, key))
            return
        size = storage.nbytes() * times
        if size == 0:
            return
        self._alive[key] = weakref.ref(storage, partial(self._freed, key))
        self.ids[key] = self.make(size, func._schema.name)

    def _freed(self, key: int, _: Any) -> None:
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
        module, forward_line = self._forward.get(node._sequence_nr(), (self.module, where))
        return StorageMaker(op, module, forward_line, True, comm)

    def resized(self, storage: Any, new: int, resize: Callable[[Any, int], Any]) -> Any:
        """Record `storage.resize_`, by which FSDP2 frees and allocates its buffers."""
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
        """Record the operations that run inside."""
        resize = torch.UntypedStorage.resize_

        def paused(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                self._paused += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._paused -= 1

            return call

        with ExitStack() as stack:
            resized = lambda s, n: self.resized(s, n, resize)  # noqa: E731
            stack.enter_context(patch.object(torch.UntypedStorage, "resize_", resized))
            for name, function in [*vars(ShardingPropagator).items()]:
                if name.startswith(PROPAGATES):
                    call = paused(function)
                    stack.enter_context(patch.object(ShardingPropagator, name, call))
            stack.enter_context(self)
            yield


def sums_in_place(events: list[int], sums: dict[int, int]) -> tuple[list[int], list[int]]:
    """The events with sums of gradients written into their first term; and for each old position,
    the number of new events before it.

    csrc/autograd/input_buffer.cpp adds in place where it holds the last reference, but never to
    a tensor that looks like a subclass, as fake ones do. So where the first term is freed directly
    after the sum was allocated, the sum takes the term's memory.
    """
    owner = memory_owners(events, sums)
    taken = {sums[total] for total in owner}  # terms whose memory a sum took
    kept: list[int] = []
    before: list[int] = [0]
    for event in events:
        if event >= 0 and event not in owner:
            kept.append(event)
        elif event < 0 and ~event not in taken:
            kept.append(~owner.get(~event, ~event))
        before.append(len(kept))
    return kept, before


def memory_owners(events: list[int], sums: dict[int, int]) -> dict[int, int]:
    """Sums that are written into a term -> the tensor whose memory they have."""
    owner_of: dict[int, int] = {}
    for index, event in enumerate(events):
        term = sums.get(event, -1)
        if term >= 0 and _freed_next(events, index, term):
            owner_of[event] = owner_of.get(term, term)
    return owner_of


def _freed_next(events: list[int], index: int, number: int) -> bool:
    """Whether a block is freed before the next allocation."""
    for event in islice(events, index + 1, None):
        if event >= 0:
            return False
        if ~event == number:
            return True
    return False
