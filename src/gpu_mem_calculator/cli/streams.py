"""The standard streams and the interrupt of this process, before a command starts."""

from __future__ import annotations

import os
import sys


def open_streams() -> None:
    """Reserve the descriptors of streams that the caller has closed (`>&-`).

    Else the next file that is opened would take the number, and get what is printed. Each is
    opened the wrong way round, so that its use is an error as with a closed one.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            how = os.O_RDONLY if number else os.O_WRONLY
            descriptor = os.open(os.devnull, how)
            if descriptor != number:  # it is open, but Python could not use it
                os.dup2(descriptor, number, inheritable=False)
                os.close(descriptor)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def die_on_interrupt() -> None:
    """Let Ctrl-C end this process at once, as any program that does not handle it.

    Python's own handler raises an exception, which is lost while a module is loaded.
    """
    # signal itself takes longer to import than some commands run
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def erase_on_interrupt(code: str) -> None:
    """Write an escape code to the terminal before Ctrl-C ends this process at once."""
    import _signal

    def end(number: int, _: object) -> None:
        os.write(sys.stdout.fileno(), code.encode())
        _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if _signal.getsignal(_signal.SIGINT) is _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, end)
