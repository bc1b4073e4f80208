"""Reading files within a bound."""

from __future__ import annotations

import io
from pathlib import Path

from .errors import InputError

MOST_BYTES = 8 * 2**20  # of a configuration file, and of a module's record
MOST_RUNS_BYTES = 256 * 2**20  # of a file of cases or of measured runs


def read_text(
    path: str | Path, option: str = "", *, most: int = MOST_BYTES, encoding: str = "utf-8"
) -> str:
    """The text of a file, a pipe or a device, of which `most` bytes are read; what cannot be read
    is a sentence that begins with the option and the path.
    """
    where = f"{option} {path}".lstrip()
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise InputError([f"{where}: it is larger than {most:,} bytes; give a smaller file"])
        return io.StringIO(data.decode(encoding), newline=None).read()
    except FileNotFoundError:
        raise InputError([f"{where}: no such file"]) from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError([f"{where}: cannot be read, {reason}"]) from None
