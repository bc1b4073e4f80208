"""A folder in a bucket of AWS S3 or of a compatible storage (MinIO), read through obstore.

Endpoint, keys and region come from environment variables. Without keys, and without a variable
that names a key service, requests are not signed: no cloud's metadata address is tried by default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ledger.extras import install
from . import tables
from .bounds import Allowance, HubError, MissingFileError, printable_address
from .reader import MOST_JSON, Read

if TYPE_CHECKING:
    from obstore.store import S3Store

MISSING = f"models in buckets need one more package: {install('hub')}"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{1,62}", re.ASCII)
CODE = re.compile(r"<Code>(\w+)</Code>")
SECONDS, READING = 60.0, 10.0  # limits of one request, and of each read of its answer
TRIES = 3  # after the first
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
ID, SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
# Variables that name a service which hands out keys; obstore asks the first that is set.
KEY_SERVICES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
)
WEB_IDENTITY, FULL_URI = KEY_SERVICES[0], KEY_SERVICES[2]
TOKEN_FILE = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"  # sent to the service in a header
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
VISIBLE = re.compile(r"[\x21-\x7e]*")  # what keys, regions and addresses consist of
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # what no HTTP header may have
PANIC = "PanicException"  # of obstore's Rust code: a BaseException, and not importable
WORDS: Mapping[str, str] = tables("bucket")["words"]
ABSENT, REGION = WORDS["NoSuchKey"], WORDS["PermanentRedirect"]
DENIED = "it is not there, or the keys may not read it"
NO_KEYS = f"it is not open to all, and there are no keys; set {ID} and {SECRET}"


class Bucket:
    """The files of a bucket under one prefix, as a `Folder`."""

    def __init__(self, name: str, prefix: str, allowance: Allowance) -> None:
        if NAME.fullmatch(name) is None:
            raise HubError("that is not a bucket's name; it is s3://BUCKET/PATH")
        self.name, self.prefix, self.allowance = name, prefix, allowance
        self.endpoint = next(filter(None, map(_variable, ENDPOINTS)), "").rstrip("/")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise HubError(
                "the storage's address (AWS_ENDPOINT_URL_S3) begins with http:// or "
                "https://; write it so"
            )
        self.region = next(filter(None, map(_variable, REGIONS)), "")
        self.keys = _keys()
        self._store: S3Store | None = None

    def _key(self, file: str) -> str:
        return f"{self.prefix}/{file}" if self.prefix else file

    def where(self, file: str) -> str:
        """The file's s3:// address, for messages."""
        return f"s3://{self.name}/{self._key(file)}"

    def store(self, where: str) -> S3Store:
        """obstore's client, built on first use; its timeouts are what the allowance has left."""
        if self._store is None:
            try:
                from obstore.store import S3Store
            except ModuleNotFoundError:
                raise HubError(MISSING) from None
            left = self.allowance.seconds(where)
            options: dict[str, Any] = dict(self.keys)
            if self.region:
                options["region"] = self.region
            if self.endpoint:
                options["aws_endpoint_url_s3"] = self.endpoint
            self._store = S3Store(
                self.name,
                client_options={
                    "allow_http": self.endpoint.startswith("http://"),
                    "connect_timeout": timedelta(seconds=min(5.0, left)),
                    "read_timeout": timedelta(seconds=min(READING, left)),
                    "timeout": timedelta(seconds=min(SECONDS, left)),
                },
                retry_config={
                    "max_retries": TRIES,
                    "retry_timeout": timedelta(seconds=left),
                    "backoff": {
                        "init_backoff": timedelta(seconds=0.2),
                        "max_backoff": timedelta(seconds=5),
                        "base": 2,
                    },
                },
                **options,
            )
        return self._store

    def read_all(self, file: str) -> bytes:
        """All bytes of a file of at most MOST_JSON bytes."""
        where = self.where(file)
        with self._sentences(where):
            answer = self.store(where).get(self._key(file))
            size = int(answer.meta["size"])
            if size > MOST_JSON:
                raise HubError(f"{where}: it is larger than {MOST_JSON:,} bytes")
            self.allowance.take(size, where)
            return bytes(answer.bytes())

    def reader(self, file: str) -> Read:
        """A reader of byte ranges; each range is one request."""
        where = self.where(file)

        def read(offset: int, count: int) -> bytes:
            self.allowance.seconds(where)
            with self._sentences(where):
                data = self._range(file, offset, count)
            self.allowance.take(len(data), where)
            return data

        return read

    def _range(self, file: str, offset: int, count: int) -> bytes:
        try:
            return bytes(
                self.store(self.where(file)).get_range(self._key(file), start=offset, length=count)
            )
        except Exception as error:
            if "<Code>InvalidRange</Code>" in str(error):
                return b""  # after the end of the file
            raise

    def end(self) -> None:
        """Make no further request."""
        self.allowance.end()

    @contextmanager
    def _sentences(self, where: str) -> Iterator[None]:
        """Turn every error of obstore, a panic too, into a HubError; they share no base class."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                raise
            raise self._sentence(error, where) from None

    def _sentence(self, error: BaseException, where: str) -> HubError:
        """One sentence for an error of obstore, whose own text can be pages long."""
        if isinstance(error, HubError):
            return error
        text = str(error)
        match = CODE.search(text)
        code = match[1] if match else ""
        if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
            return MissingFileError(f"{where}: {ABSENT}")
        at = f" at {printable_address(self.endpoint)}" if self.endpoint else ""
        if type(error).__name__ == PANIC:
            return HubError(f"{where}: obstore cannot ask the storage{at}; check AWS_* variables")
        if code in WORDS:
            return HubError(f"{where}: {WORDS[code]}{self._hint(WORDS[code], at)}")
        if "redirect without LOCATION" in text:
            return HubError(f"{where}: {REGION}{self._hint(REGION, at)}")
        status = re.search(r"status code: (\d+)", text)
        if _is_denied(error) or (status and status[1] in ("401", "403")):
            return HubError(f"{where}: {NO_KEYS if 'skip_signature' in self.keys else DENIED}")
        if status:
            return HubError(f"{where}: the storage{at} answers HTTP {status[1]}")
        return HubError(f"{where}: the storage{at} cannot be reached{self._hint('', at)}")

    def _hint(self, words: str, at: str) -> str:
        """Advice to set the endpoint, where none is set and a wrong one explains the error."""
        if at or words not in ("", REGION, WORDS["NoSuchBucket"], WORDS["InvalidAccessKeyId"]):
            return ""
        return "; AWS was asked: set AWS_ENDPOINT_URL_S3 for a storage of your own"


def _is_denied(error: BaseException) -> bool:
    """Whether the storage refuses these keys, or asks for some."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    return isinstance(error, PermissionDeniedError | UnauthenticatedError)


def _variable(name: str) -> str:
    """An environment variable without surrounding white space; empty where it is not set."""
    value = os.environ.get(name, "").strip()
    if VISIBLE.fullmatch(value) is None:
        raise HubError(f"{name} has a character that no request may have; set it again")
    return value


def _check_key_service(name: str) -> None:
    """Raise a sentence for an address or a token with which obstore panics."""
    if name == WEB_IDENTITY:  # a path; its token is sent in the body
        return
    if _variable(name) != os.environ[name]:
        raise HubError(f"{name} begins or ends with white space; set it without")
    if name != FULL_URI:
        return
    try:
        token = Path(os.environ.get(TOKEN_FILE, "")).read_bytes()
    except (OSError, ValueError):
        return  # obstore's own error follows, where it needs the file
    if CONTROL.search(token):
        raise HubError(
            f"the file of {TOKEN_FILE} has a character that no request may have, such "
            "as the end of a line; write the token alone into it"
        )


def _keys() -> dict[str, Any]:
    """obstore's options for signing, from the environment.

    Both keys where they are set, nothing where obstore asks a key service, else skip_signature.
    """
    key, secret = _variable(ID), _variable(SECRET)
    if bool(key) != bool(secret):
        have, lack = (ID, SECRET) if key else (SECRET, ID)
        raise HubError(f"{have} is set and {lack} is not; set both, or neither for open buckets")
    if key:
        session = _variable("AWS_SESSION_TOKEN")
        keys = {"access_key_id": key, "secret_access_key": secret}
        return keys | ({"session_token": session} if session else {})
    service = next((name for name in KEY_SERVICES if os.environ.get(name, "").strip()), None)
    if service is None:
        return {"skip_signature": True}
    _check_key_service(service)
    return {}
