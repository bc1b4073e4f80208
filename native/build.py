"""Builds the replay in C for this checkout, where there is a compiler; without it Python replays.

python native/build.py
python native/build.py FLAGS   with further flags of the compiler, such as -fsanitize=address
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (HERE / "replay.c", HERE / "replay.h")
LIBRARY = HERE.parent / "src" / "gpu_mem_calculator" / "pytorch" / "replay" / "_replay.so"
FLAGS = ("-std=c99", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")


def source_hash() -> str:
    """The hash of the source, which the library has, too."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]


def compile_library(target: Path = LIBRARY, more: tuple[str, ...] = ()) -> bool:
    """Whether a library was built; an old one is removed in any case."""
    target.unlink(missing_ok=True)
    compiler = next(
        filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), ""
    )
    left_out = os.environ.get("GPU_MEM_CALC_REPLAY") == "python"
    if not compiler or left_out or sys.platform == "win32":
        return False
    source = f'-DGMC_SOURCE="{source_hash()}"'
    command = [compiler, *FLAGS, *more, source, str(SOURCES[0]), "-o", str(target)]
    try:
        return subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    built = compile_library(more=tuple(sys.argv[1:]))
    print(LIBRARY if built else "no library could be built: the replay runs in Python")
    sys.exit(not built)
