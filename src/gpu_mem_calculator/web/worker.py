"""A calculating process: one question after another through its pipes, until they close.

It may read no file and no address that a client names, unless its operator says which hosts. An
interrupt ends the question at hand and nothing else; memory is bounded.
"""

from __future__ import annotations

import gc
import gzip
import os
import signal
import sys
import traceback
from types import FrameType
from typing import IO

import msgspec
from msgspec.structs import replace

from ..core.errors import InputError
from ..hub.access import Access, allow, endpoint
from ..ledger.units import MIB
from .compat import UnsupportedFieldError
from .settings import ServiceSettings, from_environment
from .tasks import answer
from .worker_messages import HEAD, TaskReply, TaskRequest, frame, refusal

LOOKING = 0.8  # of a question's time may go into looking a model up
MOST_FETCHED = 64 * MIB  # bytes of it
PACKED = 8192  # bytes from which an answer is packed
TOO_LARGE = "this takes more memory than the service gives one request; make the run smaller"
UNEXPECTED = "the calculation failed in a way that it should not; the operator's log says where"


class TaskInterrupted(BaseException):
    """The one who asked has left, or the time is over."""


class WorkerProcess:
    """Reads questions, writes replies."""

    def __init__(self, source: IO[bytes], target: IO[bytes]) -> None:
        self.source, self.target = source, target
        self.busy = False

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """End the question at hand."""
        if self.busy:
            self.busy = False
            raise TaskInterrupted

    def run(self) -> None:
        """Until the service closes the pipe."""
        while head := self.source.read(HEAD.size):
            data = self.source.read(*HEAD.unpack(head))
            self.send(self.reply(msgspec.msgpack.decode(data, type=TaskRequest)))

    def reply(self, ask: TaskRequest) -> TaskReply:
        """An answer to anything at all."""
        try:
            self.busy = True
            return guarded(ask)
        except TaskInterrupted:
            return TaskReply(0, b"")  # nobody reads it
        finally:
            self.busy = False

    def send(self, reply: TaskReply) -> None:
        """Write one reply."""
        self.target.write(frame(reply))
        self.target.flush()


def guarded(ask: TaskRequest) -> TaskReply:
    """The answer, or the sentence that stands for what went wrong."""
    try:
        reply = answer(ask)
        return packed(reply) if ask.packs and len(reply.body) >= PACKED else reply
    except InputError as error:
        return refusal(422, error.problems)
    except UnsupportedFieldError as error:
        return refusal(501, [str(error)])
    except MemoryError:
        return refusal(413, [TOO_LARGE])
    except Exception:
        traceback.print_exc()
        return refusal(500, [UNEXPECTED])


def packed(reply: TaskReply) -> TaskReply:
    """A large answer, quickly made smaller."""
    return replace(reply, body=gzip.compress(reply.body, compresslevel=1, mtime=0), packed=True)


def bounded(settings: ServiceSettings) -> None:
    """Nothing that a client asks for takes more than this."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (settings.process_bytes, settings.process_bytes))


def hosts(settings: ServiceSettings) -> frozenset[str]:
    """Where models may be looked up."""
    from urllib.parse import urlsplit

    if not settings.hub:
        return frozenset()
    own = urlsplit(endpoint()).hostname
    return frozenset(filter(None, [own, *settings.hub_hosts]))


def main() -> None:
    """Answer on stdin and stdout; whatever else prints goes to stderr."""
    settings = from_environment()
    bounded(settings)
    seconds = LOOKING * float(sys.argv[1])
    allow(Access(files=False, hosts=hosts(settings), seconds=seconds, size=MOST_FETCHED))
    process = WorkerProcess(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, process.interrupt)
    first = guarded(TaskRequest("warm", b"", {}))
    gc.freeze()  # what is there now stays: collecting garbage need not look at it
    process.send(first)
    process.run()


if __name__ == "__main__":
    main()
