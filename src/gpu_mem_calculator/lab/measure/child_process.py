"""Runs a function in a forked child: its result, the messages it sent, or how it ended.

The parent imports large packages once, and each child starts with them. A child may run out of
memory, hang or crash without harm to the parent. Nothing here knows about GPUs.
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

from ...ledger.units import MIB

TICK = 0.5  # seconds between checks that the child still runs
LOG_END = 4000  # characters of the child's output that are kept
PR_SET_PDEATHSIG = 1  # linux/prctl.h
Tell = Callable[[Any], None]


class ChildOutcome(Struct, kw_only=True):
    """How a child ended.

    - `value`: what the function returned
    - `error`: why it returned nothing, in one line
    - `kinds`: the names of the exception's classes
    - `problems`: the sentences of an `InputError`
    - `log`: the last characters that the child printed
    """

    value: Any = None
    error: str = ""
    kinds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    log: str = ""


def run_in_child(
    function: Callable[[Any, Tell], Any], argument: Any, timeout: float, receive: Tell
) -> ChildOutcome:
    """Run `function(argument, tell)` in a child; `receive` gets each message of `tell` at once.

    After `timeout` seconds the child is killed.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as log:
        with warnings.catch_warnings():
            # that a process with threads forks; they are idle
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _child(function, argument, writer, log.fileno())
        os.close(writer)
        try:
            outcome = _listen(reader, pid, timeout, receive)
        finally:
            os.close(reader)
            _stop(pid)
        log.seek(0)
        outcome.log = log.read().decode("utf-8", "replace")[-LOG_END:]
    return outcome


def _listen(reader: int, pid: int, timeout: float, receive: Tell) -> ChildOutcome:
    """Read messages, one a line, until the result, the child's end, or the timeout."""
    deadline = time.monotonic() + timeout
    buffer = b""
    while (left := deadline - time.monotonic()) > 0:
        end_words = _status(pid)
        if select.select([reader], [], [], 0 if end_words else min(left, TICK))[0]:
            chunk = os.read(reader, MIB)
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "told" not in message:
                    return convert(message, ChildOutcome)
                receive(message["told"])
            if chunk:
                continue
        if end_words:
            return ChildOutcome(error=end_words)
    return ChildOutcome(error=f"still running after {timeout:g} s, and stopped", kinds=("Timeout",))


def _status(pid: int) -> str:
    """How the child ended, in words; empty while it runs. It is not reaped here."""
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return ""
    if status.si_code == os.CLD_EXITED:
        return f"the process ended with exit code {status.si_status}"
    name = signal.Signals(status.si_status).name
    why = ", perhaps for lack of host memory" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{why}"


def _stop(pid: int) -> None:
    """Kill the child and its process group, and reap it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
    os.waitpid(pid, 0)


def _child(function: Callable[[Any, Tell], Any], argument: Any, writer: int, log: int) -> NoReturn:
    """Run the function in the child, send its result or error, and exit."""

    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(writer, data) :]

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
        kinds = [kind.__name__ for kind in type(error).__mro__]
        problems = list(getattr(error, "problems", ()))
        send({"error": error_line(error), "kinds": kinds, "problems": problems})
    finally:
        os._exit(code)


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; does nothing on other systems."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def error_line(error: BaseException) -> str:
    """An exception as one line: its class and the first line of its message."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0].strip()[:300]}" if lines else name
