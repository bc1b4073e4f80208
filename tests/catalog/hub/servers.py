"""Small servers for tests: a folder of files, one that redirects everything, and a hub.

A program that reads models is pointed at the hub by its environment:

    with hub({"owner/model": {"config.json": b"{}"}}, token="hf_x") as there:
        subprocess.run(command, env={**os.environ, **there.environment})
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

Asked = list[tuple[str, str | None]]  # the path, and the token that came with it
Trouble = Callable[["Ranges", bytes], None]  # what is done instead of sending these bytes
PIECES = 65536


class Ranges(BaseHTTPRequestHandler):
    """A handler that sends whole files, or the range that is asked for."""

    def send(self, data: bytes) -> None:
        """Send bytes, or the range of them that is asked for."""
        self.wfile.write(self.begun(data))

    def begun(self, data: bytes) -> bytes:
        """The bytes that are asked for; status and headers are sent."""
        span = self.headers.get("Range")
        if span:
            first, last = span.removeprefix("bytes=").split("-")
            data = data[int(first) : int(last) + 1]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        return data

    def refuse(self, status: int, **headers: str) -> None:
        """An answer without a body; `X_Error_Code` is the header X-Error-Code."""
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Nothing."""


class Answers(Ranges):
    """A server of a table: bytes are sent, a text is the target of a redirect."""

    def __init__(self, table: dict[str, bytes | str], asked: Asked, *rest: Any) -> None:
        self.table, self.asked = table, asked
        super().__init__(*rest)

    def do_GET(self) -> None:
        """What the table has under the end of the path."""
        self.asked.append((self.path, self.headers.get("Authorization")))
        content = next((v for k, v in self.table.items() if self.path.endswith(k)), None)
        if content is None:
            self.send_error(404)
        elif isinstance(content, str):
            self.refuse(302, Location=content)
        else:
            self.send(content)


class Quiet(ThreadingHTTPServer):
    """A server that ignores closed connections."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Nothing: the test sees what its own side gets."""


@contextmanager
def listening(handler: Callable[..., Any]) -> Iterator[str]:
    """The address of a server with a handler."""
    with Quiet(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def serving(table: dict[str, bytes | str]) -> Iterator[tuple[str, Asked]]:
    """The address of a server of a table, and what it is asked."""
    asked: Asked = []
    with listening(partial(Answers, table, asked)) as address:
        yield address, asked


# --- a hub -------------------------------------------------------------------------------------


def status(code: int, **headers: str) -> Trouble:
    """That status instead of a file."""
    return lambda handler, _: handler.refuse(code, **headers)


def truncated(keep: int) -> Trouble:
    """The length of all of it, the bytes of some, and the connection is closed."""

    def cut(handler: Ranges, data: bytes) -> None:
        handler.wfile.write(handler.begun(data)[:keep])
        handler.close_connection = True

    return cut


def instead(wrong: bytes) -> Trouble:
    """Other bytes, as a proxy's page that wants a login."""
    return lambda handler, _: handler.send(wrong)


def hung_up(handler: Ranges, _: bytes) -> None:
    """The connection is closed without an answer."""
    handler.close_connection = True


def slow(seconds: float) -> Trouble:
    """The file, a byte at a time, with such a pause before each."""

    def drip(handler: Ranges, data: bytes) -> None:
        for byte in handler.begun(data):
            time.sleep(seconds)
            handler.wfile.write(bytes([byte]))

    return drip


@dataclass
class Hub:
    """A running hub: its address, models, requests, and the troubles of the next answers."""

    models: Mapping[str, Mapping[str, bytes]]
    token: str | None
    gated: Collection[str]
    private: Collection[str]
    members: Collection[str]
    address: str = ""
    cdn: str = ""
    asked: Asked = field(default_factory=list)
    cdn_asked: Asked = field(default_factory=list)
    sent: int = 0  # bytes of files
    troubles: dict[str, list[Trouble]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a program needs."""
        variables = {"HF_ENDPOINT": self.address, "HF_HUB_OFFLINE": "0"}
        return variables | ({"HF_TOKEN": self.token} if self.token else {})

    def trouble(self, ending: str, *what: Trouble) -> None:
        """The next requests of a file whose path has this ending get these troubles, in order."""
        self.troubles.setdefault(ending, []).extend(what)

    def files(self, name: str, revision: str) -> Mapping[str, bytes] | None:
        """A model's files at a branch, a tag or a commit."""
        if revision == "main" or revision == commit(name):
            return self.models.get(name)
        for at, files in self.models.items():
            if at.startswith(f"{name}@") and revision in (at.partition("@")[2], commit(at)):
                return files
        return None


def commit(name: str) -> str:
    """The commit of a model of that name, or of `name@revision`."""
    return sha1(name.encode()).hexdigest()


class _Hub(Ranges):
    """/owner/model/resolve/revision/file as the hub answers it: small files are redirected
    to its cache, others to another host with a signature.
    """

    protocol_version = "HTTP/1.1"

    def __init__(self, there: Hub, *rest: Any) -> None:
        self.there = there
        super().__init__(*rest)

    def do_GET(self) -> None:
        """A file, or why not."""
        there, token = self.there, self.headers.get("Authorization")
        there.asked.append((self.path, token))
        parts = [unquote(part) for part in self.path.strip("/").split("/")]
        cached = parts[:3] == ["api", "resolve-cache", "models"]
        if cached:
            parts = [*parts[3:5], "resolve", *parts[5:]]
        if len(parts) < 5 or parts[2] != "resolve":
            self.refuse(404)
            return
        name, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        if not self._admitted(name, token):
            return
        files = there.files(name, revision)
        if files is None or file not in files:
            code = "RevisionNotFound" if files is None else "EntryNotFound"
            self.refuse(404, X_Error_Code=code, X_Error_Message=f"no {file} at {revision}")
            return
        if cached or not there.cdn:
            deliver(self, there, files[file])
        elif file.endswith((".json", ".txt", ".md", ".py")):
            at = quote(revision, "")
            self.refuse(307, Location=f"/api/resolve-cache/models/{name}/{at}/{quote(file)}")
        else:
            place = f"{there.cdn}/{name}/{quote(revision, '')}/{quote(file)}?X-Amz-Signature=signed"
            self.refuse(302, Location=place, X_Linked_Size=str(len(files[file])))

    def _admitted(self, name: str, token: str | None) -> bool:
        """Whether the request may read the model; a refusal is sent where it may not."""
        there = self.there
        known = there.token is not None and token == f"Bearer {there.token}"
        if token is not None and not known and there.token is not None:
            self.refuse(401, X_Error_Message="Invalid credentials in Authorization header")
            return False
        here = any(one.partition("@")[0] == name for one in there.models)
        if not here or (name in there.private and not known):
            self.refuse(
                404 if known else 401,
                X_Error_Code="RepoNotFound",
                X_Error_Message="Repository not found",
            )
            return False
        if name in there.gated and not (known and name in there.members):
            self.refuse(
                403 if known else 401,
                X_Error_Code="GatedRepo",
                X_Error_Message=f"Access to model {name} is restricted",
            )
            return False
        return True


class _Cdn(Ranges):
    """Where the hub keeps large files: no token, and a signature instead."""

    protocol_version = "HTTP/1.1"

    def __init__(self, there: Hub, *rest: Any) -> None:
        self.there = there
        super().__init__(*rest)

    def do_GET(self) -> None:
        """A file."""
        there = self.there
        there.cdn_asked.append((self.path, self.headers.get("Authorization")))
        path, _, query = self.path.partition("?")
        owner, model, revision, file = map(unquote, path.strip("/").split("/", 3))
        files = there.files(f"{owner}/{model}", revision) or {}
        if query != "X-Amz-Signature=signed" or self.headers.get("Authorization"):
            self.refuse(400)  # as S3 does with two kinds of credentials at once
        elif file not in files:
            self.refuse(404)
        else:
            deliver(self, there, files[file])


def deliver(handler: Ranges, there: Hub, data: bytes) -> None:
    """Send a file, or the next trouble of it."""
    path = handler.path.partition("?")[0]
    queue = next((q for end, q in there.troubles.items() if path.endswith(end) and q), None)
    if queue:
        queue.pop(0)(handler, data)
        return
    data = handler.begun(data)
    there.sent += len(data)
    handler.wfile.write(data)


@contextmanager
def hub(
    models: Mapping[str, Mapping[str, bytes]],
    token: str | None = None,
    gated: Collection[str] = (),
    *,
    private: Collection[str] = (),
    members: Collection[str] = (),
    cdn: bool = True,
) -> Iterator[Hub]:
    """A hub with models: `owner/model`, or `owner/model@revision`, and its files.

    `gated` and `private` name models that the token opens: private ones always, gated ones where
    they are among `members`. `cdn` says whether large files are on another host (port).
    """
    there = Hub(models, token, gated, private, members)
    with listening(partial(_Hub, there)) as address, listening(partial(_Cdn, there)) as place:
        there.address, there.cdn = address, place if cdn else ""
        yield there
