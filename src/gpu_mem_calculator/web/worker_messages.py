"""Messages between the service and its calculating processes: a length, then msgpack."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

HEAD = struct.Struct("!I")  # the bytes that follow, big-endian
FILES = "files"  # the word of a calculating process's command with which it may open files
JSON, BINARY = "application/json", "application/octet-stream"
UNEXPECTED = "a fault of the service, not of your request; please report it with this id: {}"


class TaskRequest(Struct, frozen=True, array_like=True):
    """One task to run: its name, the client's bytes unread, and the options of the address."""

    task: str
    body: bytes
    options: dict[str, str]
    packs: bool = False  # the client accepts gzip


class TaskReply(Struct, frozen=True, array_like=True):
    """The reply, ready to be sent: HTTP status, body and media type."""

    status: int
    body: bytes
    media: str = JSON
    filename: str = ""  # for a reply that is saved as a file
    packed: bool = False  # the body is gzipped
    fault: str = ""  # the id of a fault of ours, which the log has, too


def frame(message: TaskRequest | TaskReply) -> bytes:
    """A message as the bytes that go through a pipe."""
    data = msgspec.msgpack.encode(message)
    return HEAD.pack(len(data)) + data


def refusal(status: int, problems: list[str], files: Sequence[str] = ()) -> TaskReply:
    """A reply that says what is wrong, one sentence each, and which files are missing."""
    body: dict[str, Any] = {"detail": "; ".join(problems), "problems": problems}
    body |= {"files": files} if files else {}
    return TaskReply(status, msgspec.json.encode(body))


def fault() -> TaskReply:
    """The reply to a request that met a fault of ours: an id, and nothing of the fault itself."""
    name = uuid4().hex[:12]
    problems = [UNEXPECTED.format(name)]
    body = {"detail": problems[0], "problems": problems, "id": name}
    return replace(refusal(500, problems), body=msgspec.json.encode(body), fault=name)
