"""The operation, module and line of code that allocated a storage."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

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
