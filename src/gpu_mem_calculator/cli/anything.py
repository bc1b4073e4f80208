"""What a text is for that is given without a command: a log or a memory snapshot is diagnosed, a
launch command is checked, a model's name is estimated.
"""

from __future__ import annotations

import io
import os
import select
import sys
from stat import S_ISFIFO, S_ISREG

from ..runfile.text.errors import InputError
from ..runfile.text.files import STDIN, decode_printed, is_pickle, read_printed

WAIT_SECONDS = 2.0  # for the first byte of a pipe; a caller may leave an empty one open
DATA = "{["  # what JSON begins with


def is_given() -> bool:
    """Whether standard input is a file or a pipe that has text."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    if S_ISREG(kind):
        return True
    return S_ISFIFO(kind) and bool(select.select([sys.stdin], [], [], WAIT_SECONDS)[0])


def verb_of(path: str) -> tuple[str, str]:
    """The verb for a file or standard input, and the word that it takes in its place."""
    from ..tools.logs.read import is_printed

    data = read_printed(path)
    if is_pickle(data):
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
        return "diagnose", path
    text = decode_printed(data)
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))  # the verb reads it once more
    if is_printed(text) or _says_it_died(text):
        return "diagnose", path
    words = text.split(maxsplit=1)
    if len(words) == 1 and path == STDIN and words[0][0] not in DATA:
        return "quick", words[0]
    return ("calculate", path) if not words or words[0][0] in DATA else ("check", STDIN)


def _says_it_died(text: str) -> bool:
    """Whether somebody's words say that memory ran out, and none of them starts a known tool."""
    from ..tools.logs.read import SAID, read_log

    if all(one.what != SAID for one in read_log(text).lines):
        return False
    from ..tools.reading.named_files import NamedFiles
    from ..tools.reading.tools import UnknownToolError
    from ..tools.shell.read import read_script

    try:
        read_script(text, NamedFiles())
    except UnknownToolError:
        return True
    except InputError:
        pass
    return False
