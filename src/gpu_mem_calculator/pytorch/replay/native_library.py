"""The library of the replay in C: where it is, and whether it is to be had."""

from __future__ import annotations

import os
from functools import cache

TYPE_CHECKING = False  # typing takes longer to import than `--version` to answer
if TYPE_CHECKING:
    from ctypes import CDLL

VARIABLE, PYTHON = "GPU_MEM_CALC_REPLAY", "python"
LIBRARY = os.path.join(os.path.dirname(__file__), "_replay.so")
ABI = 4


@cache
def library() -> CDLL | None:
    """The library, if it was built, is one of this version, and GPU_MEM_CALC_REPLAY does not leave
    it out.
    """
    if os.environ.get(VARIABLE) == PYTHON or not os.path.exists(LIBRARY):
        return None
    from ctypes import CDLL, POINTER, c_int64, c_void_p  # which most commands do without

    try:
        found = CDLL(LIBRARY)
        if found.gmc_abi() != ABI:
            return None
    except (OSError, AttributeError):
        return None
    for name in ("gmc_plan_open", "gmc_open", "gmc_copy"):
        getattr(found, name).restype = c_void_p
    for name in ("gmc_most_alive", "gmc_first_beyond", "gmc_most_slack"):
        getattr(found, name).restype = c_int64
    found.gmc_phases.restype = POINTER(c_int64)
    return found
