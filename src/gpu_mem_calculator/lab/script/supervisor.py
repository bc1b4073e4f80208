"""The process above a traced script: it ends whatever the script has started, and then itself.

It has no other children, so every process that is left when the script has ended is the script's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
PAUSE = 0.01  # seconds between two looks for processes that are left


def main(words: Sequence[str]) -> NoReturn:
    """Run a command; end as it ended, after all that it started."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become this process's children
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # `trace` itself was killed
    signal.signal(signal.SIGTERM, _stop)
    process = subprocess.Popen(list(words))
    try:
        code = process.wait()
    finally:
        end_children()
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _stop(_signal: int, _frame: object) -> NoReturn:
    end_children()
    os._exit(128 + signal.SIGTERM)


def end_children() -> None:
    """Kill the processes that are left, and those that they leave to this one, until none is."""
    while left := children():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        time.sleep(PAUSE)


def children() -> list[int]:
    """The processes whose parent this one is (proc(5): the fourth field of stat)."""
    own, found = str(os.getpid()), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):  # it has ended
            continue
        if parent == own and state != "X":
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
