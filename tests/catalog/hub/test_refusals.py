"""What a server's refusal means, status by status, and what an address is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.catalog.hub import sources
from gpu_mem_calculator.catalog.hub.bounds import HubError, MissingFileError, TemporaryHubError
from gpu_mem_calculator.catalog.hub.request import is_link_local, is_public, origin, refusal

HAND = "; download its config.json and give the path"


def refused(status: int, address: str, **headers: str) -> HubError:
    """The error for an answer with a status."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return refusal(SimpleNamespace(status=status, headers=names), address, "m")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, HubError, f"m: it wants a login{HAND}"),
        (403, HubError, f"m: it is not open to all{HAND}"),
        (404, MissingFileError, "m: there is no such file"),
        (410, MissingFileError, "m: it is gone"),
        (402, HubError, "m: HTTP 402"),
        (418, HubError, "m: HTTP 418"),
    ],
)
def test_a_lasting_refusal_says_what_to_do(status: int, kind: type, words: str) -> None:
    """A file that is not open can be downloaded by hand; one that is missing cannot."""
    error = refused(status, "https://example.org/config.json")
    assert (type(error), str(error)) == (kind, words)


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {}, "it needs a token: set HF_TOKEN"),
        (403, {}, "it is not open to all: set HF_TOKEN"),
        (401, {"X_Error_Code": "GatedRepo"}, "it is gated: accept its terms on its page, and set"),
        (404, {"X_Error_Code": "RevisionNotFound"}, "it has no such branch, tag or commit"),
        (403, {"X_Error_Message": "this is disabled"}, "the hub has closed it to everybody"),
        (404, {}, "there is no such file"),
    ],
)
def test_the_hub_names_its_reason(
    monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], words: str
) -> None:
    """In a header; else the status says it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", "none")
    error = refused(status, "https://huggingface.co/a/b", **headers)
    assert str(error).startswith(f"m: {words}")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(status: int) -> None:
    """After the wait that it asks for, up to 30 seconds."""
    error = refused(status, "https://example.org/x", Retry_After="30")
    assert isinstance(error, TemporaryHubError)
    late = refused(status, "https://example.org/x", Retry_After="31")
    assert type(late) is HubError
    assert str(late).endswith("try again later, in 31 seconds as it says")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("https://a.org/x", ("https", "a.org", 443)),
        ("http://a.org/x", ("http", "a.org", 80)),
        ("http://A.org:8080/x", ("http", "a.org", 8080)),
        ("ftp://a.org/x", ("ftp", "a.org", None)),
    ],
)
def test_an_origin_has_its_port(address: str, parts: tuple[str, str, int | None]) -> None:
    """The scheme's own where none is given."""
    assert origin(address) == parts


@pytest.mark.parametrize(
    ("address", "public", "local"),
    [
        ("8.8.8.8", True, False),
        ("10.0.0.1", False, False),
        ("169.254.169.254", False, True),
        ("::ffff:169.254.169.254", False, True),
        ("64:ff9b::a9fe:a9fe", False, True),  # NAT64 of the same
        ("64:ff9b::808:808", True, False),
        ("224.0.0.1", False, False),
        ("fec0::1", False, False),
    ],
)
def test_an_address_inside_is_known_by_its_ipv4_address(
    address: str, public: bool, local: bool
) -> None:
    """Also where that is embedded in an IPv6 address."""
    assert (is_public(address), is_link_local(address)) == (public, local)


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/models/mine/config.json", "mine"),
        ("/config.json", "config"),
        ("/models/other.json", "other"),
        ("/models/mine/model.safetensors", "mine"),
        ("/models/mine", "mine"),
        ("/", "bucket"),
    ],
)
def test_a_remote_model_is_called_by_its_folder_or_file(
    monkeypatch: pytest.MonkeyPatch, path: str, title: str
) -> None:
    """The folder of a config.json; without one, the file; for a whole bucket, its name."""
    monkeypatch.setattr(sources, "_look_up", lambda name, headers, folder, first: first(None))
    monkeypatch.setattr(sources, "read_config", lambda remote, title, *rest: title)
    nothing: Any = None
    assert sources._file_or_folder("s3://bucket", path, nothing, "", False) == title
