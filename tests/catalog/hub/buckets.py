"""Buckets for tests: a real S3 server (moto's) on this machine, and a proxy that checks keys.

with bucket("models", {"tiny/config.json": b"{}"}) as there:
    subprocess.run(command, env={**os.environ, **there.environment})
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tests.catalog.hub.servers import listening

KEY, SECRET = "AKIATESTKEY", "not/a+real-secret"
SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<date>\d+)/(?P<region>[^/]+)/s3/aws4_request, ?"
    r"SignedHeaders=(?P<names>[^,]+), ?Signature=(?P<sum>\w+)"
)
# What moto's server accepts: it reads the key, and does not check the signature.
ADMITTED = {
    "Host": "s3.amazonaws.com",
    "Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/"
    "us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0",
}
REASONS = {
    "InvalidAccessKeyId": 403,
    "SignatureDoesNotMatch": 403,
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "SlowDown": 503,
    "PermanentRedirect": 301,
    "MethodNotAllowed": 405,
    "ExpiredToken": 400,
}


@dataclass
class Bucket:
    """A bucket that runs: where, with which keys, and what was asked (path, range, key)."""

    name: str
    key: str
    secret: str
    region: str
    public: bool
    endpoint: str = ""
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # error codes of the next answers
    cuts: int = 0  # how many of the next answers end early

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a program needs."""
        variables = {"AWS_ENDPOINT_URL_S3": self.endpoint}
        if not self.public:
            variables |= {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}
        return variables


class _Door(BaseHTTPRequestHandler):
    """Checks the signature as S3 does, and forwards the request to moto's server."""

    protocol_version = "HTTP/1.1"

    def __init__(self, there: Bucket, backend: tuple[str, int], *rest: Any) -> None:
        self.there, self.backend = there, backend
        super().__init__(*rest)

    def do_GET(self) -> None:
        """An object, a range of it, or S3's error."""
        signed = SIGNED.fullmatch(self.headers.get("Authorization", ""))
        there = self.there
        there.asked.append((self.path, self.headers.get("Range"), signed and signed["key"]))
        code = there.troubles.pop(0) if there.troubles else self._refused(signed)
        if code:
            message = f"<Error><Code>{code}</Code><Message>{code}, says the door</Message></Error>"
            self._send(REASONS[code], {"Content-Type": "application/xml"}, message.encode())
            return
        passed = {**ADMITTED, **{n: self.headers[n] for n in ("Range",) if self.headers.get(n)}}
        self._send(*_asked(self.backend, self.command, self.path, b"", passed))

    do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)

    def _refused(self, signed: re.Match[str] | None) -> str | None:
        there = self.there
        if signed is None:
            return None if there.public else "AccessDenied"
        if signed["key"] != there.key:
            return "InvalidAccessKeyId"
        if signed["region"] != there.region:
            return "AuthorizationHeaderMalformed"
        return (
            None
            if hmac.compare_digest(self._signature(signed), signed["sum"])
            else ("SignatureDoesNotMatch")
        )

    def _signature(self, signed: re.Match[str]) -> str:
        """AWS Signature Version 4 of this request with the secret that the bucket has."""
        parts = urlsplit(self.path)
        names = signed["names"].split(";")
        lines = [f"{name}:{' '.join(self.headers.get(name, '').split())}" for name in names]
        query = "&".join(sorted(filter(None, parts.query.split("&"))))
        canonical = "\n".join(
            [
                self.command,
                quote(unquote(parts.path), "/-_.~"),
                query,
                *lines,
                "",
                signed["names"],
                self.headers["x-amz-content-sha256"],
            ]
        )
        scope = f"{signed['date']}/{signed['region']}/s3/aws4_request"
        summed = hashlib.sha256(canonical.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope, summed])
        key = f"AWS4{self.there.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, text.encode(), "sha256").hex()

    def _send(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in (
                "server",
                "date",
                "content-length",
                "transfer-encoding",
                "connection",
            ):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.close_connection = self.there.cuts > 0
            self.wfile.write(data[: len(data) // 2] if self.there.cuts > 0 else data)
            self.there.cuts -= 1

    def log_message(self, *words: Any) -> None:
        """Nothing."""


def _asked(
    place: tuple[str, int], method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """One request to moto's server."""
    connection = http.client.HTTPConnection(*place, timeout=20)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@cache
def _server() -> tuple[str, int]:
    """moto's S3, once for this process; it ends with it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return str(host), int(port)


@contextmanager
def bucket(
    name: str,
    files: Mapping[str, bytes],
    *,
    key: str = KEY,
    secret: str = SECRET,
    region: str = "us-east-1",
    public: bool = False,
) -> Iterator[Bucket]:
    """A bucket with files, reached by path style over plain http; `public` needs no keys."""
    backend = _server()
    made = _asked(backend, "PUT", f"/{name}", b"", ADMITTED)
    assert made[0] == 200, made
    for path, data in files.items():
        made = _asked(backend, "PUT", f"/{name}/{quote(path)}", data, ADMITTED)
        assert made[0] == 200, made
    there = Bucket(name, key, secret, region, public)
    with listening(partial(_Door, there, backend)) as address:
        there.endpoint = address
        yield there
    for path in files:
        _asked(backend, "DELETE", f"/{name}/{quote(path)}", b"", ADMITTED)
    _asked(backend, "DELETE", f"/{name}", b"", ADMITTED)
