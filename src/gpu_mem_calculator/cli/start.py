"""Starts the command that was checked: this process becomes it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from shutil import which
from typing import NoReturn

from ..runfile.text.errors import InputError
from ..tools.conversion.source import ENDINGS
from ..tools.launchers.wrappers import without_variables
from ..tools.reading import MODELFILE, SCRIPTS

# Python ignores these, and a program inherits that; subprocess restores the same ones.
IGNORED = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


def check_startable(words: Sequence[str]) -> None:
    """Raise one sentence where the words are no command that can be started."""
    variables, rest = without_variables(words)
    if not rest or which(rest[0], path=variables.get("PATH", os.environ.get("PATH"))):
        return
    name = rest[0]
    where = f"--run starts a command, and {name!r}"
    if name.endswith(SCRIPTS):
        raise InputError(f"{where} is a script; write --run bash {shlex.quote(name)}")
    if name.lower().endswith(ENDINGS) or name.rpartition("/")[2].startswith(MODELFILE):
        raise InputError(f"{where} is a file; leave --run out")
    raise InputError(f"{where} is no program on the PATH; install it, or leave --run out")


def become(words: Sequence[str]) -> NoReturn:
    """Replace this process by the command, with the variables in front of it.

    The command gets every signal itself, and its exit code is this process's.
    """
    variables, rest = without_variables(words)
    sys.stdout.flush()
    sys.stderr.flush()
    for name in IGNORED:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(rest[0], rest, {**os.environ, **variables})
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{rest[0]!r} cannot be started: {reason}") from None
