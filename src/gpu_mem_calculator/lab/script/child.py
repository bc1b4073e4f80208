"""The process of a traced script, which has no network: one of its own, or a guard in Python.

Linux gives a process a network namespace in which there is nothing but a loopback; everything that
it starts is in it, too. Where the kernel refuses that, processes of Python are guarded by a
`sitecustomize` module, and other programs are not: a sentence on stderr says so.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import msgspec

from ...runfile.text.errors import print_to_stderr
from .recording import Failure, Recording, ScriptInput, encoded

PACKAGES = str(Path(__file__).parents[3])
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40  # linux/sockios.h, linux/if.h
GUARD = """\
import sys
sys.path.insert(0, {packages!r})
from gpu_mem_calculator.lab.script.network import offline
sys.path.remove({packages!r})
sys.gpu_mem_calc_guard = offline()  # as long as the process
sys.gpu_mem_calc_guard.__enter__()
sys.path.remove({folder!r})
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    pass
sys.modules.setdefault("sitecustomize", own)
"""
UNGUARDED = (
    "the kernel gives the script no network of its own (user namespaces are off): it and every "
    "Python process that it starts are refused the network, other programs are not"
)


def isolate(folder: Path, packages: str) -> None:
    """Take the network from this process and from all that it starts, as far as the kernel lets.

    - folder: a new one for the guard; packages: where this package is
    """
    if not own_network():
        guard_python(folder, packages)
        print_to_stderr(UNGUARDED)


def own_network() -> bool:
    """Move this process to a network of its own; False where that is not possible.

    Root needs no user namespace for it, in which it would lose its rights on others' files. This
    process must have one thread only.
    """
    if sys.platform != "linux":
        return False
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    user, group = os.getuid(), os.getgid()
    if unshare(CLONE_NEWNET) != 0:
        if unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return False
        with suppress(OSError):  # else files of this user would be nobody's
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with suppress(OSError):
        _start_loopback()
    return True


def _start_loopback() -> None:
    """Bring `lo` up: ranks of one machine meet there."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.pack("16sh14x", b"lo", IFF_UP | IFF_RUNNING)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, flags)


def guard_python(folder: Path, packages: str) -> None:
    """Let every Python process that is started from now on refuse the network, as this one does."""
    guard = folder / "guard"
    guard.mkdir()
    text = GUARD.format(packages=packages, folder=str(guard))
    (guard / "sitecustomize.py").write_text(text, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{guard}{os.pathsep}{before}" if before else str(guard)


def main(file: str) -> NoReturn:
    """Run the script of a plan; write its recording, or why there is none, and end the process.

    The process ends in the middle of the script, so that it saves and uploads nothing.
    """
    plan = msgspec.json.decode(Path(file).read_bytes(), type=ScriptInput)
    isolate(Path(file).parent, PACKAGES)
    os.dup2(2, 1)  # what the script prints goes to stderr: stdout has the answer alone

    def finish(outcome: Recording | Failure) -> NoReturn:
        Path(plan.result).write_bytes(encoded(outcome))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    finish(traced(plan, finish))


def traced(plan: ScriptInput, finish: Callable[[Recording], Any]) -> Recording | Failure:
    """The recording of a plan's script; `finish` is called in the middle of the script."""
    from .program import run_program
    from .recording import failure_of
    from .simulation import simulated

    with (
        patch.dict(os.environ, plan.environment),
        simulated(plan, finish) as simulation,
        _as_main(plan),
    ):
        try:
            run_program(plan.program, simulation) if plan.program else run_script(plan)
        except SystemExit as end:
            if end.code not in (None, 0):
                return failure_of(plan, end)
        except Exception as error:
            return failure_of(plan, error)
        return simulation.outcome()


def run_script(plan: ScriptInput) -> None:
    """Run the script as Python's own command line would."""
    if plan.module:
        runpy.run_module(plan.target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(plan.target, run_name="__main__")


@contextmanager
def _as_main(plan: ScriptInput) -> Iterator[None]:
    """sys.argv and sys.path as the script expects them."""
    before, path = sys.argv, sys.path[:]
    sys.argv = [plan.target, *plan.arguments]
    folder = str(Path.cwd()) if plan.module else str(Path(plan.target).resolve().parent)
    sys.path[0:0] = [folder]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path
        gc.collect()
