"""A calculating process: it runs one task after another from its pipe, until the pipe closes.

It reads no file and no address that a client names, except on the hosts that the operator allows.
An interrupt ends the running task and nothing else; its memory is limited.
"""

from __future__ import annotations

import gc
import gzip
import os
import signal
import sys
from types import FrameType
from typing import IO

import msgspec
from msgspec.structs import replace

from ..catalog.hub.access import Access, allow, endpoint
from ..ledger.units import MIB
from ..runfile.text.errors import InputError
from .logs import log_fault, start_logs
from .settings import ServiceSettings, from_environment
from .tasks import answer
from .worker_messages import HEAD, TaskReply, TaskRequest, fault, frame, refusal

LOOKUP_SHARE = 0.8  # of a task's time may be spent on looking a model up
MOST_FETCHED = 64 * MIB  # bytes of one download
PACK_FROM_BYTES = 8192  # replies from this size on are gzipped
TOO_LARGE = "this takes more memory than the service gives one request; make the run smaller"


class TaskInterrupted(BaseException):
    """The client has left, or the time limit is over."""


class WorkerProcess:
    """Reads requests from `source` and writes replies to `target`."""

    def __init__(self, source: IO[bytes], target: IO[bytes]) -> None:
        self.source, self.target = source, target
        self.busy = False

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """Signal handler: end the running task, if there is one."""
        if self.busy:
            self.busy = False
            raise TaskInterrupted

    def run(self) -> None:
        """Answer requests until the service closes the pipe."""
        while head := self.source.read(HEAD.size):
            data = self.source.read(*HEAD.unpack(head))
            self.send(self.reply(msgspec.msgpack.decode(data, type=TaskRequest)))

    def reply(self, ask: TaskRequest) -> TaskReply:
        """The reply to a request; an empty one where it was interrupted."""
        try:
            self.busy = True
            return reply_or_refusal(ask)
        except TaskInterrupted:
            return TaskReply(0, b"")  # nobody reads it
        finally:
            self.busy = False

    def send(self, reply: TaskReply) -> None:
        """Write one reply and flush it."""
        self.target.write(frame(reply))
        self.target.flush()


def reply_or_refusal(ask: TaskRequest) -> TaskReply:
    """The task's reply, or the refusal for the error it raised."""
    try:
        reply = answer(ask)
        return gzipped(reply) if ask.packs and len(reply.body) >= PACK_FROM_BYTES else reply
    except InputError as error:
        return refusal(422, error.problems)
    except MemoryError:
        return refusal(413, [TOO_LARGE])
    except Exception as error:
        reply = fault()
        log_fault(reply.fault, error)
        return reply


def gzipped(reply: TaskReply) -> TaskReply:
    """The reply with its body gzipped, at the fastest level."""
    return replace(reply, body=gzip.compress(reply.body, compresslevel=1, mtime=0), packed=True)


def limit_memory(settings: ServiceSettings) -> None:
    """Limit this process's address space to `process_bytes`; not on Windows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (settings.process_bytes, settings.process_bytes))


def allowed_hosts(settings: ServiceSettings) -> frozenset[str]:
    """The hosts that models may be looked up on; none without `settings.hub`."""
    from urllib.parse import urlsplit

    if not settings.hub:
        return frozenset()
    hub = urlsplit(endpoint()).hostname
    return frozenset(filter(None, [hub, *settings.hub_hosts]))


def main() -> None:
    """Answer on stdin and stdout; anything that prints goes to stderr."""
    settings = from_environment()
    start_logs(settings.log_level)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would take address space
    limit_memory(settings)
    seconds = LOOKUP_SHARE * float(sys.argv[1])
    allow(Access(files=False, hosts=allowed_hosts(settings), seconds=seconds, size=MOST_FETCHED))
    process = WorkerProcess(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, process.interrupt)
    first = reply_or_refusal(TaskRequest("warm", b"", {}))
    gc.freeze()  # what is loaded now stays: the garbage collector need not visit it
    process.send(first)
    process.run()


if __name__ == "__main__":
    main()
