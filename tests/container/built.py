"""The image's files, made once for a whole test run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from .bare_image import build, lacking


def image_root(factory: pytest.TempPathFactory) -> Path:
    """What the target `tool` holds; GPU_MEM_CALC_ROOT where it was made before.

    The processes of a test run share one: the first makes it, the others wait.
    """
    if given := os.environ.get("GPU_MEM_CALC_ROOT"):
        return Path(given)
    if missing := lacking():
        pytest.skip(missing)
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root = shared / "image"
    with (shared / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.with_name("image.done").exists():
            build("tool", root)
            root.with_name("image.done").touch()
    return root
