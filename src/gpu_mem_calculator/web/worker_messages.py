"""What the service and its calculating processes say to each other: lengths, then msgpack."""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

HEAD = struct.Struct("!I")  # bytes that follow
JSON = "application/json"


class TaskRequest(Struct, frozen=True, array_like=True):
    """One question: the task, the client's bytes as they came, and what the address said."""

    task: str
    body: bytes
    options: dict[str, str]
    packs: bool = False  # the client takes gzip


class TaskReply(Struct, frozen=True, array_like=True):
    """The answer, ready to be sent."""

    status: int
    body: bytes
    media: str = JSON
    filename: str = ""  # where it is meant to be saved
    packed: bool = False


def frame(message: TaskRequest | TaskReply) -> bytes:
    """A message as it goes through a pipe."""
    data = msgspec.msgpack.encode(message)
    return HEAD.pack(len(data)) + data


def refusal(status: int, problems: list[str]) -> TaskReply:
    """What was wrong, one sentence each."""
    said = {"detail": "; ".join(problems), "problems": problems}
    return TaskReply(status, msgspec.json.encode(said))
