"""Nothing is saved: a traced script has no weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def nothing_saved() -> Iterator[None]:
    """torch.save and safetensors write no file."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    import safetensors.torch

    with (
        patch.object(torch, "save", nothing),
        patch.object(safetensors.torch, "save_file", nothing),
        patch.object(safetensors.torch, "save_model", nothing),
    ):
        yield
