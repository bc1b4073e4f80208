"""Messages between the service and its calculating processes: a length, then msgpack."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

HEAD = struct.Struct("!I")  # the bytes that follow, big-endian
FILES = "files"  # the word of a calculating process's command with which it may open files
GENTLE = "gentle"  # the word with which it searches for plans, and gives way to the others
JSON, BINARY, EVENTS = "application/json", "application/octet-stream", "text/event-stream"
LATE = "this run takes longer than {:g} seconds, the limit of this service; try a smaller run"
UNEXPECTED = "a fault of the service, not of your request; please report it with this id: {}"


class TaskRequest(Struct, frozen=True, array_like=True):
    """One task to run: its name, the client's bytes unread, and the options of the address.

    seconds: where it `streams`, those after which it ends with what it has
    """

    task: str
    body: bytes
    options: dict[str, str]
    packs: bool = False  # the client accepts gzip
    streams: bool = False  # the client accepts events
    seconds: float = 0.0


class TaskReply(Struct, frozen=True, array_like=True):
    """The reply, ready to be sent: HTTP status, body and media type."""

    status: int
    body: bytes
    media: str = JSON
    filename: str = ""  # for a reply that is saved as a file
    packed: bool = False  # the body is gzipped
    more: bool = False  # a part of a reply that streams; others follow
    fault: str = ""  # the id of a fault of ours, which the log has, too


def frame(message: TaskRequest | TaskReply) -> bytes:
    """A message as the bytes that go through a pipe."""
    data = msgspec.msgpack.encode(message)
    return HEAD.pack(len(data)) + data


def event(name: str, data: Any) -> bytes:
    """A server-sent event; JSON has no line break in it."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def refusal(status: int, problems: list[str], files: Sequence[str] = ()) -> TaskReply:
    """A reply that says what is wrong, one sentence each, and which files are missing."""
    body: dict[str, Any] = {"detail": "; ".join(problems), "problems": problems}
    body |= {"files": files} if files else {}
    return TaskReply(status, msgspec.json.encode(body))


def late(seconds: float) -> str:
    """The sentence for a task that takes too long."""
    return LATE.format(seconds)


def fault() -> TaskReply:
    """The reply to a request that met a fault of ours: an id, and nothing of the fault itself."""
    name = uuid4().hex[:12]
    problems = [UNEXPECTED.format(name)]
    body = {"detail": problems[0], "problems": problems, "id": name}
    return replace(refusal(500, problems), body=msgspec.json.encode(body), fault=name)


def gzipped(reply: TaskReply) -> TaskReply:
    """The reply with its body gzipped, at the fastest level."""
    return replace(reply, body=gzip.compress(reply.body, compresslevel=1, mtime=0), packed=True)


def unheard(_part: TaskReply) -> None:
    """A part of a reply that nobody waits for."""
