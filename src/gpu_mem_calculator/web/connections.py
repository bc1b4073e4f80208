"""uvicorn's connections, with a limit on the bytes and the seconds of a request's head.

Connections on which nothing arrives are closed, too. (The application limits bodies and answers.)
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .guard import LONG_HEAD, MOST_HEAD_BYTES
from .worker_messages import JSON, refusal

HEAD_SECONDS = 10.0  # for a head to arrive, and for the first one on a connection
SLOW_HEAD = f"the headers took longer than {HEAD_SECONDS:g} seconds"


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed when a head is too large or too slow."""

    head_bytes = 0  # received since the last head was complete
    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; refuse a head that grows too large before it is complete."""
        if self._between_requests():
            self.head_bytes += len(data)
            self._start_clock()
        super().data_received(data)
        if self.head_bytes > MOST_HEAD_BYTES and self._between_requests():
            self._refuse(431, LONG_HEAD)

    def on_headers_complete(self) -> None:
        """The head is complete: the application decides on it."""
        self.head_bytes = 0
        self._stop_clock()
        super().on_headers_complete()

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_clock(self) -> None:
        if self.deadline is None:
            self.deadline = self.loop.call_later(HEAD_SECONDS, self._refuse_late)

    def _stop_clock(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _refuse_late(self) -> None:
        """Close the connection; a head that has begun gets a sentence."""
        if self.head_bytes:
            self._refuse(408, SLOW_HEAD)
        else:
            self.transport.close()

    def _refuse(self, status: int, sentence: str) -> None:
        """Send a refusal outside of any request, and close."""
        self._stop_clock()
        if self.transport.is_closing():
            return
        body = refusal(status, [sentence]).body
        head = {"content-type": JSON, "content-length": len(body), "connection": "close"}
        self.transport.write(_status_line(status) + _lines(head) + b"\r\n" + body)
        self.transport.close()


def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} \r\n".encode()


def _lines(head: dict[str, Any]) -> bytes:
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in head.items())
