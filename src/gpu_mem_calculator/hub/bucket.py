"""A folder in an S3 bucket, AWS's or another's (MinIO), through obstore.

Endpoint, keys and region are the environment's. Without keys, and without a word on where else to
get some, requests are not signed: no cloud's metadata address is ever tried by itself.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .bounds import Allowance, HubError, MissingFileError, said
from .reader import MOST_JSON, Read

if TYPE_CHECKING:
    from obstore.store import S3Store

MISSING = "models in buckets need one more package: pip install 'gpu-mem-calculator[hub]'"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{1,62}", re.ASCII)
CODE = re.compile(r"<Code>(\w+)</Code>")
SECONDS, READING, TRIES = 60.0, 10.0, 3  # of a request, of each piece; after the first
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
ID, SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
# Variables that say where keys are to be had, which obstore then asks.
ELSEWHERE = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
             "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT")  # fmt: skip
# S3's error codes (API Reference, "List of error codes") in words.
ABSENT = "there is no such object"
REGION = "the bucket is in another region; set AWS_REGION"
WORDS = {
    "NoSuchKey": ABSENT,
    "NoSuchBucket": "there is no such bucket",
    "InvalidBucketName": "that is not a bucket's name",
    "InvalidAccessKeyId": f"the key of {ID} is not known there; check it",
    "SignatureDoesNotMatch": f"the secret of {SECRET} is not that key's; check it",
    "InvalidToken": "the token of AWS_SESSION_TOKEN is not good; take a new one",
    "ExpiredToken": "the token of AWS_SESSION_TOKEN is no longer good; take a new one",
    "RequestTimeTooSkewed": "this machine's clock is off; set it",
    "PermanentRedirect": REGION,
    "AuthorizationHeaderMalformed": REGION,
    "IllegalLocationConstraintException": REGION,
    "SlowDown": "the storage is asked too often; try again later",
}
DENIED = "it is not there, or the keys may not read it"
NO_KEYS = f"it is not open to all, and there are no keys; set {ID} and {SECRET}"


class Bucket:
    """Files of a bucket under one prefix."""

    def __init__(self, name: str, prefix: str, allowance: Allowance) -> None:
        if NAME.fullmatch(name) is None:
            raise HubError("that is not a bucket's name; it is s3://BUCKET/PATH")
        self.name, self.prefix, self.allowance = name, prefix, allowance
        self.endpoint = next(filter(None, map(_told, ENDPOINTS)), "").rstrip("/")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise HubError("the storage's address (AWS_ENDPOINT_URL_S3) begins with http:// or "
                           "https://; write it so")  # fmt: skip
        self.keys = _keys()
        self._store: S3Store | None = None

    def _key(self, file: str) -> str:
        return f"{self.prefix}/{file}" if self.prefix else file

    def where(self, file: str) -> str:
        """As it is typed."""
        return f"s3://{self.name}/{self._key(file)}"

    def store(self, where: str) -> S3Store:
        """What asks; made when it is needed, with the time that is left then."""
        if self._store is None:
            try:
                from obstore.store import S3Store
            except ModuleNotFoundError:
                raise HubError(MISSING) from None
            left = self.allowance.seconds(where)
            options: dict[str, Any] = dict(self.keys)
            if self.endpoint:
                options["aws_endpoint_url_s3"] = self.endpoint
            self._store = S3Store(
                self.name,
                client_options={"allow_http": self.endpoint.startswith("http://"),
                                "connect_timeout": timedelta(seconds=min(5.0, left)),
                                "read_timeout": timedelta(seconds=min(READING, left)),
                                "timeout": timedelta(seconds=min(SECONDS, left))},
                retry_config={"max_retries": TRIES, "retry_timeout": timedelta(seconds=left),
                              "backoff": {"init_backoff": timedelta(seconds=0.2),
                                          "max_backoff": timedelta(seconds=5), "base": 2}},
                **options,
            )  # fmt: skip
        return self._store

    def whole(self, file: str) -> bytes:
        """A small file."""
        where = self.where(file)
        try:
            answer = self.store(where).get(self._key(file))
            size = int(answer.meta["size"])
            if size > MOST_JSON:
                raise HubError(f"{where}: it is larger than {MOST_JSON:,} bytes")
            self.allowance.take(size, where)
            return bytes(answer.bytes())
        except Exception as error:  # obstore's share no base with what else it raises
            raise self._told(error, where) from None

    def reader(self, file: str) -> Read:
        """Ranges of a file, each a request of its own."""
        where = self.where(file)

        def read(offset: int, count: int) -> bytes:
            self.allowance.seconds(where)
            try:
                found = self.store(where).get_range(self._key(file), start=offset, length=count)
            except Exception as error:
                if "<Code>InvalidRange</Code>" in str(error):
                    return b""  # behind the end
                raise self._told(error, where) from None
            self.allowance.take(len(found), where)
            return bytes(found)

        return read

    def end(self) -> None:
        """No further request."""
        self.allowance.end()

    def _told(self, error: Exception, where: str) -> HubError:
        """A sentence of our own: what obstore says runs over pages."""
        if isinstance(error, HubError):
            return error
        text = str(error)
        found = CODE.search(text)
        code = found[1] if found else ""
        if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
            return MissingFileError(f"{where}: {ABSENT}")
        at = f" at {said(self.endpoint)}" if self.endpoint else ""
        if code in WORDS:
            return HubError(f"{where}: {WORDS[code]}{self._hint(WORDS[code], at)}")
        if "redirect without LOCATION" in text:
            return HubError(f"{where}: {REGION}{self._hint(REGION, at)}")
        if "status code: 403" in text or "status code: 401" in text:
            return HubError(f"{where}: {NO_KEYS if 'skip_signature' in self.keys else DENIED}")
        status = re.search(r"status code: (\d+)", text)
        if status:
            return HubError(f"{where}: the storage{at} answers HTTP {status[1]}")
        return HubError(f"{where}: the storage{at} cannot be reached{self._hint('', at)}")

    def _hint(self, words: str, at: str) -> str:
        """Where no address is given, it may be that it should have been."""
        if at or words not in ("", REGION, WORDS["NoSuchBucket"], WORDS["InvalidAccessKeyId"]):
            return ""
        return "; AWS was asked: set AWS_ENDPOINT_URL_S3 for a storage of your own"


def _told(name: str) -> str:
    return os.environ.get(name, "").strip()


def _keys() -> dict[str, Any]:
    """Keys that are given, or that none are used; nothing where obstore is to get some."""
    key, secret = _told(ID), _told(SECRET)
    if bool(key) != bool(secret):
        have, lack = (ID, SECRET) if key else (SECRET, ID)
        raise HubError(f"{have} is set and {lack} is not; set both, or neither for open buckets")
    if key:
        return {"access_key_id": key, "secret_access_key": secret} | (
            {"session_token": _told("AWS_SESSION_TOKEN")} if _told("AWS_SESSION_TOKEN") else {}
        )
    return {} if any(map(_told, ELSEWHERE)) else {"skip_signature": True}
