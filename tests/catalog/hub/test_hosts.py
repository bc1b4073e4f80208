"""Which hosts a look-up reaches, and what it sends them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpu_mem_calculator.catalog.hub import request
from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.bounds import HubError
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from tests.catalog.hub.local_hub import (
    CONFIG_BYTES,
    LOCAL,
    SECRET,
    TABLE,
    WEIGHTS,
    hub,
    online,
    why,
)
from tests.catalog.hub.servers import Asked, serving
from tests.catalog.hub.test_checkpoint import CONFIG

ROUTE = request.RequestRoute("https://huggingface.co/owner/tiny")
__all__ = ["hub", "online"]  # fixtures


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Names that are looked up and addresses that are connected to; neither happens."""
    seen: list[Any] = []

    def refuse(*args: Any, **_: Any) -> Any:
        seen.append(args)
        raise OSError("not in a test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return seen


def test_a_configured_host_is_asked(hub: tuple[dict[str, bytes | str], Asked]) -> None:
    """HF_ENDPOINT may be on this machine or over plain http, where the operator says so."""
    allow(LOCAL)
    model = find_model(ModelConfig(name="owner/tiny"), headers=True)
    assert (model.title, len(model.stored)) == ("tiny", 1)
    assert {token for _, token in hub[1]} == {f"Bearer {SECRET}"}


def test_no_hosts_no_network(hub: tuple[dict[str, bytes | str], Asked], dialled: list[Any]) -> None:
    """Nothing is asked, not even a name server; a copy of a preset is still known by its name."""
    allow(Access(files=False, hosts=frozenset()))
    assert "look-ups are off here; paste its config.json instead" in why("some/thing")
    assert find_model(ModelConfig(name="someone/Llama-3.1-8B-Instruct-AWQ")).config is not None
    assert not hub[1]
    assert not dialled


@pytest.mark.parametrize(
    "endpoint",
    [
        None,
        "https://mirror.example",
        "http://mirror.example",
        "https://huggingface.co.evil.example",
        "https://other.example@evil.example",
        "https://other.example\\@evil.example",
        "file:///etc",
        "ftp://other.example",
    ],
)
def test_a_host_that_is_not_configured_is_not_asked(
    endpoint: str | None, monkeypatch: pytest.MonkeyPatch, dialled: list[Any]
) -> None:
    """Whatever HF_ENDPOINT is; the sentence does not tell it."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    if endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    allow(Access(files=False, hosts=frozenset({"other.example"})))
    message = why()
    assert "may not contact" in message or "https is read" in message
    assert "mirror.example" not in message
    assert not dialled


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("HuggingFace.co", True),
        ("cdn.hf.co", True),
        ("a.b.hf.co", True),
        ("hf.co", False),
        ("evilhf.co", False),
        ("huggingface.co.", False),
        ("huggingface.co.evil.example", False),
        ("", False),
    ],
)
def test_which_hosts_a_set_means(host: str, reached: bool) -> None:
    """A name is one host; with a dot in front, all below it."""
    assert Access(hosts=frozenset({"huggingface.co", ".HF.co"})).reaches(host) is reached
    assert Access().reaches(host)


@pytest.mark.parametrize(
    "inside",
    [
        "127.0.0.1",
        "169.254.169.254",
        "10.0.0.7",
        "::1",
        "fe80::1",
        "::ffff:127.0.0.1",
        "100.64.0.1",
    ],
)
@pytest.mark.parametrize("endpoint", [None, "https://mirror.example"])
def test_a_name_that_leads_inside_is_not_connected_to(
    inside: str, endpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configured host whose name server says so, be it one of several addresses."""
    family = socket.AF_INET6 if ":" in inside else socket.AF_INET
    answer = [(socket.AF_INET, 1, 6, "", ("8.8.8.8", 443)), (family, 1, 6, "", (inside, 443))]
    connections: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    monkeypatch.setattr(socket.socket, "connect", lambda _, place: connections.append(place))
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    if endpoint:  # its redirects to another host are judged like any other
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    allow(Access(files=False, hosts=frozenset({"huggingface.co"})))
    with pytest.raises(HubError, match="redirects to a private address"):
        request.connect_to("huggingface.co", 443, 1.0, ROUTE)
    assert not connections


def test_the_address_that_was_judged_is_the_one_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server that changes its mind is not asked twice."""
    answers = [
        [(socket.AF_INET, 1, 6, "", ("8.8.8.8", 443))],
        [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 443))],
    ]
    connections: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(socket.socket, "connect", lambda _, place: connections.append(place))
    allow(Access(files=False, hosts=frozenset({"huggingface.co"})))
    request.connect_to("huggingface.co", 443, 1.0, ROUTE).close()
    assert connections == [("8.8.8.8", 443)]
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("127.0.0.53", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fd00:ec2::254", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),
        ("2001:0:1:2::3", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    """The internet's, also inside other notations; nothing of this machine or its network."""
    assert request.is_public(address) is public


@pytest.mark.parametrize("allowed", [Access(), LOCAL], ids=["command line", "service"])
def test_the_token_stays_with_the_hub(
    allowed: Access, hub: tuple[dict[str, bytes | str], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows the hub's own redirects, and none to another server."""
    monkeypatch.setattr(request, "is_public", lambda address: True)
    allow(allowed)
    with serving({"/stored?signature=1": WEIGHTS}) as (address, asked):
        hub[0]["/model.safetensors"] = f"{address}/stored?signature=1"
        hub[0]["/renamed"] = CONFIG_BYTES
        hub[0]["/config.json"] = "/owner/renamed"
        assert len(hub_checkpoint("owner/tiny", headers=True).tensors) == 1
    assert asked == [("/stored?signature=1", None)] * 2
    assert dict(hub[1])["/owner/renamed"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("login", ["name:hunter2", "hunter2", "name:hun/hunter2", "n:h#hunter2"])
def test_a_password_in_hf_endpoint_is_not_told(
    login: str, monkeypatch: pytest.MonkeyPatch, dialled: list[Any]
) -> None:
    """It is not sent either; the sentence says so where the address can be read at all."""
    monkeypatch.setenv("HF_ENDPOINT", f"https://{login}@mirror.example:8443")
    heard = why()
    assert "hunter2" not in heard
    assert "https://mirror.example:8443/owner/tiny/resolve/main/config.json: " in heard
    assert not any("hunter2" in str(one) for one in dialled)


def test_a_password_in_an_endpoint_without_a_scheme_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sentence names what is wrong, which is not the password."""
    monkeypatch.setenv("HF_ENDPOINT", "name:hunter2@mirror.example")
    assert "hunter2" not in why()


def test_a_proxy_of_the_operator_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on a private network; it is asked for configured hosts only."""
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example")
    with serving(TABLE) as (address, asked):
        monkeypatch.setenv("http_proxy", address)
        allow(Access(files=False, hosts=frozenset({"mirror.example"})))
        assert hub_checkpoint("owner/tiny").config == CONFIG
        assert all(path.startswith("http://mirror.example/owner/tiny/") for path, _ in asked)
        asked.clear()
        allow(Access(files=False, hosts=frozenset({"other.example"})))
        assert "may not contact" in why()
        assert not asked


def test_a_connection_asks_for_itself(dialled: list[Any]) -> None:
    """The host that is connected to is checked, independently of its address."""
    allow(Access(files=False, hosts=frozenset({"huggingface.co"})))
    with pytest.raises(HubError, match="may not contact"):
        request.connect_to("elsewhere.example", 443, 1.0, ROUTE)
    assert not dialled


@pytest.mark.parametrize("host", ["user@huggingface.co", "a:b@huggingface.co", "huggingface.co:x"])
def test_an_address_with_more_than_a_host_is_not_asked(
    host: str, monkeypatch: pytest.MonkeyPatch, dialled: list[Any]
) -> None:
    """Two readers of one address cannot differ over who is meant."""
    monkeypatch.setenv("HF_ENDPOINT", f"https://{host}")
    allow(Access(files=False, hosts=frozenset({"huggingface.co"})))
    assert "may not contact" in why()
    assert not dialled
