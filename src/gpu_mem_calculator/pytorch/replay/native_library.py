"""Where the library of the replay in C is, and whether it is wanted; imported with every replay."""

from __future__ import annotations

import os
from functools import cache

VARIABLE, PYTHON = "GPU_MEM_CALC_REPLAY", "python"
LIBRARY = os.path.join(os.path.dirname(__file__), "_replay.so")


@cache
def is_wanted() -> bool:
    """Whether it was built, and GPU_MEM_CALC_REPLAY does not leave it out."""
    return os.environ.get(VARIABLE) != PYTHON and os.path.exists(LIBRARY)
