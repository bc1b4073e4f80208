"""Reads files of bounded size, and writes files completely or not at all."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_IMODE, S_ISREG
from typing import TYPE_CHECKING

from ..ledger.units import MIB
from .errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 8 * MIB  # of a configuration file or a module's record
MOST_RUNS_BYTES = 256 * MIB  # of a file of cases or of measured runs


def read_text(
    path: str | Path, option: str = "", *, most: int = MOST_BYTES, encoding: str = "utf-8"
) -> str:
    """The text of a file, a pipe or a device of at most `most` bytes.

    Raises InputError with a sentence that begins with the option and the path.
    """
    where = f"{option} {path}".lstrip()
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise InputError(f"{where}: it is larger than {most:,} bytes; give a smaller file")
        return io.StringIO(data.decode(encoding), newline=None).read()
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"{where}: cannot be read, {reason}") from None


def check_writable(path: str | Path, option: str) -> None:
    """Raise the error that `write_file` would raise, without writing anything."""
    with _write_errors(path, option):
        if not os.path.exists(path):
            target = os.path.realpath(path)
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.unlink(target)
        elif os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif os.path.isfile(path):
            os.close(os.open(path, os.O_WRONLY))
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_file(path: str | Path, data: bytes, option: str) -> None:
    """Write a file completely: until all bytes are on disk, the old file stays.

    The bytes are written to a new file in the same folder, which is then renamed. Symbolic links
    and permissions are preserved. Written in place are a pipe, a device, standard output, a file
    with several hard links, one whose owner cannot be preserved, and one in a folder that accepts
    no new file.
    """
    with _write_errors(path, option):
        stream = _stream(path)
        if stream is not None:
            _write_all(stream, data)
        elif not _replace_file(path, data):
            with open(path, "wb") as file:
                file.write(data)


@contextmanager
def _write_errors(path: str | Path, option: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{option} {path}: cannot be written, {reason}") from None


def _stream(path: str | Path) -> int | None:
    """The descriptor of standard output or error, where the path (such as /dev/stdout) is one."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if os.path.samestat(os.stat(path), os.fstat(stream.fileno())):
                stream.flush()
                return stream.fileno()
        except (OSError, ValueError):  # no such file, or a stream that is no file
            continue
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _replace_file(path: str | Path, data: bytes) -> bool:
    """Replace a file by a new one with the data; False where that is not possible."""
    target = os.path.realpath(path)
    old = os.stat(target) if os.path.exists(target) else None
    if old is None and os.path.exists(path):  # a descriptor's link, such as /dev/fd/5 to a pipe
        return False
    if old is not None and not (S_ISREG(old.st_mode) and old.st_nlink == 1):
        return False
    import tempfile

    try:
        descriptor, temporary = tempfile.mkstemp(
            prefix=".gpu-mem-calc-", dir=os.path.dirname(target)
        )
    except OSError:
        return False  # the write in place says what is wrong
    try:
        with open(descriptor, "wb") as file:
            _copy_permissions(temporary, old)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.errno in (errno.EBUSY, errno.EPERM):
            return False  # a mount point, or another owner's
        raise
    return True


def _copy_permissions(path: str, old: os.stat_result | None) -> None:
    """Give a new file the owner and permissions of the old one, or the default permissions."""
    new = os.stat(path)
    if old is not None and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(path, old.st_uid, old.st_gid)
    os.chmod(path, S_IMODE(old.st_mode) if old is not None else 0o666 & ~_umask())


def _umask() -> int:
    """The process's umask, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
