"""Reads files of bounded size, and writes files completely or not at all."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_IMODE, S_ISFIFO, S_ISREG
from time import monotonic, sleep, time
from typing import TYPE_CHECKING

from ...catalog.hub.access import OUTSIDE, access
from ...ledger.units import MIB
from .errors import InputError, OutputError

if TYPE_CHECKING:
    from pathlib import Path

# Sizes that are parsed within 2 seconds and 300 MB, whatever is in the file.
MOST_BYTES = 2 * MIB  # of a configuration file in JSON
MOST_SLOW_BYTES = MIB // 4  # of one in YAML or TOML, whose parsers are slower
MOST_RECORD_BYTES = 8 * MIB  # of a module's record
MOST_RUNS_BYTES = 8 * MIB  # of a file of cases or of measured runs
MOST_LOG_BYTES = 50 * MIB  # of what a program printed
MOST_SNAPSHOT_BYTES = 300 * MIB  # of a memory snapshot, which takes a minute and 1 GiB
STDIN, STANDARD_INPUT = "-", "standard input"
TEMPORARY = ".gpu-mem-calc-"  # how the name of a file begins that is not complete yet
OLD_SECONDS = 3600.0  # after which such a file was left by a process that was killed
WRITER_SECONDS = 2.0  # until a program must have opened a pipe to write to it
PICKLE = b"\x80"
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text(path: str | Path, option: str = "", *, most: int = MOST_BYTES) -> str:
    """The text of a file, a pipe or a device of at most `most` bytes; `-` is standard input.

    Raises InputError with a sentence that begins with the option and the path.
    """
    data = read_bytes(path, option, most=most)
    try:
        return decode_text(data)
    except ValueError:  # which an InputError is, too
        raise InputError(
            f"{_where(path, option)}: it is not UTF-8 text; save it as UTF-8"
        ) from None


def read_printed(path: str | Path) -> bytes:
    """The bytes of what a program printed, or of a memory snapshot, which may be larger."""
    return read_bytes(path, most=MOST_SNAPSHOT_BYTES if _is_pickle_file(path) else MOST_LOG_BYTES)


# Where more than one in 20 characters of the first MiB cannot be read, it is no text.
BEGIN, FEW = MIB, 20
PLAIN = bytes(one if 32 <= one < 127 or one in b"\t\n\r" else ord("?") for one in range(256))


def decode_printed(data: bytes) -> str:
    """The text of what a program printed, whatever bytes are in it; of no text its ASCII."""
    if not data.startswith(UTF16) and len(data) > BEGIN:
        begin = data[:BEGIN].decode("utf-8", errors="replace")
        if begin.count("\ufffd") * FEW > len(begin):
            return data.translate(PLAIN).decode("ascii")
    return data.decode("utf-16" if data.startswith(UTF16) else "utf-8-sig", errors="replace")


def is_pickle(data: bytes) -> bool:
    """Whether bytes begin as a pickle does: with its protocol, from 2 on."""
    return data[:1] == PICKLE and data[1:2] in (b"\2", b"\3", b"\4", b"\5")


def _is_pickle_file(path: str | Path) -> bool:
    """Whether a file begins as a pickle; of a pipe that is not known before it is read."""
    try:
        if str(path) == STDIN:
            stream = sys.stdin.buffer
            if isinstance(stream, io.BytesIO):  # what was read before
                return is_pickle(stream.getvalue())
            return isinstance(stream, io.BufferedReader) and is_pickle(stream.peek(2))
        if not S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return is_pickle(file.read(2))
    except (OSError, ValueError, AttributeError):
        return False


def read_bytes(path: str | Path, option: str = "", *, most: int) -> bytes:
    """The bytes of a file; the same errors as `read_text`."""
    where = _where(path, option)
    if str(path) != STDIN and not access().opens(path):
        raise InputError(f"{where} {OUTSIDE}")
    try:
        size = os.stat(path).st_size if str(path) != STDIN else 0
        data = _read(path, most + 1) if size <= most else b""
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{where}: cannot be read, {reason}") from None
    if max(size, len(data)) > most:
        has = f" (it has {size:,})" if size else ""
        raise InputError(f"{where}: it is larger than {most:,} bytes{has}; give a smaller file")
    return data


def _where(path: str | Path, option: str) -> str:
    return f"{option} {path}".lstrip() if str(path) != STDIN else STANDARD_INPUT


def decode_text(data: bytes) -> str:
    """Text in UTF-8 or, if it begins with its mark, UTF-16; line ends become newlines."""
    encoding = "utf-16" if data.startswith(UTF16) else "utf-8-sig"
    return io.StringIO(data.decode(encoding), newline=None).read()


def _read(path: str | Path, most: int) -> bytes:
    """At most `most` bytes of a file."""
    if str(path) == STDIN:
        if sys.stdin is None:  # closed by the caller
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return sys.stdin.buffer.read(most)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        start = b""
        if S_ISFIFO(os.fstat(descriptor).st_mode):
            start = _first_bytes(descriptor, most)
            os.set_blocking(descriptor, True)
        with open(descriptor, "rb", closefd=False) as file:
            rest: bytes | None = file.read(most - len(start))
        if rest is None:  # a device or a file of /proc that has nothing yet
            raise OSError(errno.EAGAIN, "it has nothing to read")
        return start + rest
    finally:
        os.close(descriptor)


def _first_bytes(pipe: int, most: int) -> bytes:
    """What a pipe has already; an OSError where no program opens it to write to it."""
    end = monotonic() + WRITER_SECONDS
    while monotonic() < end:
        try:
            data = os.read(pipe, most)
        except BlockingIOError:  # opened by a program that writes later
            return b""
        if data:
            return data
        sleep(0.01)
    raise OSError(errno.EPIPE, "no program writes to this pipe")


def check_writable(path: str | Path, option: str) -> None:
    """Raise the error that `write_file` would raise, without writing anything."""
    with _write_errors(path, option, InputError):
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
    with _write_errors(path, option, OutputError):
        stream = _stream(path)
        if stream is not None:
            _write_all(stream, data)
        elif not _replace_file(path, data):
            with open(path, "wb") as file:
                file.write(data)


@contextmanager
def _write_errors(path: str | Path, option: str, kind: type[InputError]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise kind(f"{option} {path}: cannot be written, {reason}") from None


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

    folder = os.path.dirname(target)
    _remove_old(folder)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
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


def _remove_old(folder: str) -> None:
    """Remove new files of this package that were left in a folder by processes that were killed."""
    try:
        with os.scandir(folder) as entries:
            left = [one for one in entries if one.name.startswith(TEMPORARY)]
        for one in left:
            facts = one.stat(follow_symlinks=False)
            if facts.st_uid == os.getuid() and facts.st_mtime < time() - OLD_SECONDS:
                os.unlink(one.path)
    except OSError:  # not readable, or another process was faster
        pass


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
