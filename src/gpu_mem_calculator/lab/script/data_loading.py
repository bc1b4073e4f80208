"""Data loaders in the script's own process, where its tensors are."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.utils.data import DataLoader

ALONE: dict[str, Any] = {
    "num_workers": 0,
    "pin_memory": False,
    "timeout": 0,
    "multiprocessing_context": None,
    "prefetch_factor": None,
    "persistent_workers": False,
}
"""Workers and page-locked memory are the host's: they change nothing on the GPU."""


@contextmanager
def one_process() -> Iterator[None]:
    """Every DataLoader loads in this process."""
    make = DataLoader.__init__
    signature = inspect.signature(make)

    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(loader, *args, **kwargs).arguments
        del given["self"]
        make(loader, **{**given, **ALONE})

    with patch.object(DataLoader, "__init__", init):
        yield
