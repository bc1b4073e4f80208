"""A function in a process of its own: its answer, what it told on the way, or how it ended.

The parent imports what is heavy once; each child starts from there, and may run out of memory,
hang or crash without taking anything with it. Nothing here knows about GPUs.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from msgspec import Struct, convert

from ..ledger.units import MIB

TICK = 0.5  # seconds between looks at whether the child is still there
LOG_END = 4000  # characters of what it printed that are kept
PR_SET_PDEATHSIG = 1  # linux/prctl.h
Tell = Callable[[Any], None]


class ChildOutcome(Struct, kw_only=True):
    """What became of a child.

    `value` is the answer; where there is none, `error` says why in one line. `kinds` are the names
    of the exception's classes, `problems` its sentences where the input was wrong, `log` the end
    of what it printed.
    """

    value: Any = None
    error: str = ""
    kinds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    log: str = ""


def run_in_child(
    function: Callable[[Any, Tell], Any], argument: Any, timeout: float, hear: Tell
) -> ChildOutcome:
    """Run `function(argument, tell)` in a child; what it tells is heard here at once."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as log:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside idle threads
            pid = os.fork()
        if pid == 0:
            _child(function, argument, writer, log.fileno())
        os.close(writer)
        try:
            outcome = _listen(reader, pid, timeout, hear)
        finally:
            os.close(reader)
            _stop(pid)
        log.seek(0)
        outcome.log = log.read().decode("utf-8", "replace")[-LOG_END:]
    return outcome


def _listen(reader: int, pid: int, timeout: float, hear: Tell) -> ChildOutcome:
    """Read one message a line until the last one, the child's end, or the timeout."""
    end = time.monotonic() + timeout
    buffer = b""
    while (left := end - time.monotonic()) > 0:
        gone = _status(pid)
        if select.select([reader], [], [], 0 if gone else min(left, TICK))[0]:
            chunk = os.read(reader, MIB)
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "told" not in message:
                    return convert(message, ChildOutcome)
                hear(message["told"])
            if chunk:
                continue
        if gone:
            return ChildOutcome(error=gone)
    return ChildOutcome(error=f"still running after {timeout:g} s, and stopped", kinds=("Timeout",))


def _status(pid: int) -> str:
    """How the child ended, in words; nothing while it runs. It stays to be collected."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return ""
    if found.si_code == os.CLD_EXITED:
        return f"the process ended with exit code {found.si_status}"
    name = signal.Signals(found.si_status).name
    why = ", perhaps for lack of host memory" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{why}"


def _stop(pid: int) -> None:
    """Stop the child and all that it started, and collect it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
    os.waitpid(pid, 0)


def _child(function: Callable[[Any, Tell], Any], argument: Any, writer: int, log: int) -> NoReturn:
    """The child's whole life."""

    def send(message: dict[str, Any]) -> None:
        left = json.dumps(message).encode() + b"\n"
        while left:
            left = left[os.write(writer, left) :]

    code = 0
    try:
        os.setpgid(0, 0)
        end_with_parent()
        os.dup2(log, 1)
        os.dup2(log, 2)
        send({"value": function(argument, lambda message: send({"told": message}))})
    except BaseException as error:
        code = 1
        os.write(log, traceback.format_exc().encode("utf-8", "replace"))
        send({
            "error": error_line(error),
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "problems": list(getattr(error, "problems", ())),
        })  # fmt: skip
    finally:
        os._exit(code)


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent is killed; elsewhere, nothing."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def error_line(error: BaseException) -> str:
    """An exception as one line: its class and the first line of what it says."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0].strip()[:300]}" if lines else name
