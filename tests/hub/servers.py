"""Small servers for tests: a folder of files, and one that sends everything on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Asked = list[tuple[str, str | None]]  # the path, and the token that came with it


class Ranges(BaseHTTPRequestHandler):
    """What sends whole files, or the range that is asked for."""

    def send(self, data: bytes) -> None:
        """Some bytes, or those of them that are asked for."""
        span = self.headers.get("Range")
        if span:
            first, last = span.removeprefix("bytes=").split("-")
            data = data[int(first) : int(last) + 1]
        self.send_response(206 if span else 200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        """Nothing."""


class Answers(Ranges):
    """A server of a table: bytes are sent, a text is where a request is sent on to."""

    def __init__(self, table: dict[str, bytes | str], asked: Asked, *rest: Any) -> None:
        self.table, self.asked = table, asked
        super().__init__(*rest)

    def do_GET(self) -> None:
        """What the table has under the end of the path."""
        self.asked.append((self.path, self.headers.get("Authorization")))
        found = next((v for k, v in self.table.items() if self.path.endswith(k)), None)
        if found is None:
            self.send_error(404)
        elif isinstance(found, str):
            self.send_response(302)
            self.send_header("Location", found)
            self.end_headers()
        else:
            self.send(found)


@contextmanager
def serving(table: dict[str, bytes | str]) -> Iterator[tuple[str, Asked]]:
    """The address of a server of a table, and what it is asked."""
    asked: Asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Answers, table, asked)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
