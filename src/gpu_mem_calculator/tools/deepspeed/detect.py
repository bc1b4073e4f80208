"""Whether data is DeepSpeed's; the tables of its keys are read only where a run file is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.read import SECTIONS


def is_deepspeed(data: Any) -> bool:
    """Whether data is a DeepSpeed configuration and not a run file, by its keys."""
    if not isinstance(data, Mapping) or data.keys() & SECTIONS.keys():
        return False
    from .keys import TOP

    return any(key in TOP for key in data)
