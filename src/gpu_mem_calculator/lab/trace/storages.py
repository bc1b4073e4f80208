"""Storages: the operation, module and line of code that allocated one, and which are the host's.

Those in host memory are not replayed: all others are on the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_iter

TORCH = f"{torch.__path__[0]}/"
LAB = __file__.rpartition("trace/")[0]
OURS = (f"{LAB}trace/", f"{LAB}script/")
JOBS = f"{LAB}jobs/"
PLUMBING = tuple(
    f"{TORCH}{name}"
    for name in (
        "_compile.py",
        "_dynamo/",
        "_ops.py",
        "_tensor.py",
        "autograd/",
        "overrides.py",
        "utils/",
    )
)
# DeepSpeed's replacement of torch's linear layers, and its decorator of any function
AROUND = ("deepspeed/runtime/zero/linear.py", "deepspeed/utils/nvtx.py")
COMM_FILES = (f"{TORCH}distributed/", f"{TORCH}nn/parallel/")


class StorageMaker(NamedTuple):
    """What allocated a storage.

    - `op`, `module`: the operation, and the module it ran in
    - `line`: the nearest file:line outside torch
    - `backward`: backward was running
    - `comm`: torch.distributed called the operation
    """

    op: str
    module: str
    line: str
    backward: bool
    comm: bool


def calling_line() -> tuple[str, bool]:
    """The nearest line of the model's code, as file:line; without one, the nearest of torch outside
    `PLUMBING`. And whether torch.distributed called.
    """
    frame, comm, inside = sys._getframe(2), False, ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(TORCH):
            comm = comm or name.startswith(COMM_FILES)
            if not inside and not name.startswith(PLUMBING):
                inside = f"{name}:{frame.f_lineno}"
        elif name.startswith(JOBS):
            return inside or f"{name}:{frame.f_lineno}", comm
        elif not name.startswith(OURS) and not name.endswith(AROUND):
            return f"{name}:{frame.f_lineno}", comm
        frame = frame.f_back  # type: ignore[assignment]
    return inside, comm


class HostStorages:
    """The host's storages, and whether an operation allocates on the host or on the GPU."""

    def __init__(self) -> None:
        self.host: dict[int, str] = {}  # storage -> the operation that allocated it
        self._named: bool | None = None

    @contextmanager
    def making(self, *, host: bool) -> Iterator[None]:
        """Allocations inside are on the host or on the GPU, as the program named the device."""
        before, self._named = self._named, host
        try:
            yield
        finally:
            self._named = before

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in host memory."""
        return tensor.untyped_storage()._cdata in self.host

    def makes_host(self, args: Any, kwargs: Any) -> bool:
        """Whether an operation allocates on the host: it names it, or all its tensors are there."""
        if self._named is not None:
            return self._named
        if not self.host:
            return False
        tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        return bool(tensors) and all(map(self.on_host, tensors))
