"""Where a host may send a look-up on to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpu_mem_calculator.catalog.hub import request
from gpu_mem_calculator.catalog.hub.access import allow
from gpu_mem_calculator.catalog.hub.bounds import HubError
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint
from tests.catalog.hub.local_hub import CONFIG_BYTES, LOCAL, TABLE, hub, online, why
from tests.catalog.hub.servers import Asked, serving
from tests.catalog.hub.test_checkpoint import CONFIG

__all__ = ["hub", "online"]  # fixtures


@pytest.mark.parametrize(
    "onward",
    [
        "https://elsewhere.example/x",
        "http://169.254.169.254/latest/meta-data/",
        "http://127.1/x",
        "http://localhost:1/x",
        "http://[::1]:1/x",
        "http://2130706433/x",
        "http://0/x",
        "//elsewhere.example/x",
        "http://127.0.0.1@elsewhere.example/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "gopher://127.0.0.1/x",
    ],
)
@pytest.mark.parametrize("file", ["/config.json", "/model.safetensors"])
def test_being_sent_to_another_host_ends_there(
    onward: str,
    file: str,
    hub: tuple[dict[str, bytes | str], Asked],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No name is looked up for it, and the sentence does not tell where it would have gone."""
    names: list[str] = []
    real = socket.getaddrinfo

    def watched(host: str, *args: Any, **rest: Any) -> Any:
        names.append(host)
        return real(host, *args, **rest)

    monkeypatch.setattr(socket, "getaddrinfo", watched)
    hub[0][file] = onward
    allow(LOCAL)
    message = why()
    assert "may not contact" in message or "https is read" in message
    assert "elsewhere" not in message
    assert "169.254" not in message
    assert set(names) == {"127.0.0.1"}


def test_another_port_of_this_machine_is_another_server(
    hub: tuple[dict[str, bytes | str], Asked],
) -> None:
    """The operator named one of them: other ports of the mirror's host are not reached."""
    allow(LOCAL)
    with serving(TABLE) as (address, asked):
        hub[0]["/config.json"] = f"{address}/config.json"
        assert "redirects to a private address" in why()
    assert not asked


@pytest.mark.parametrize("inside", ["169.254.169.254", "10.0.0.7", "::1"])
def test_a_public_hub_cannot_redirect_a_command_line_inside(
    inside: str, hub: tuple[dict[str, bytes | str], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first host may be anywhere; a redirect reaches public addresses alone."""
    real = request.is_public
    monkeypatch.setattr(request, "is_public", lambda one: one == "127.0.0.1" or real(one))
    family = socket.AF_INET6 if ":" in inside else socket.AF_INET
    look_up = socket.getaddrinfo

    def answered(host: str, port: int, **rest: Any) -> Any:
        if host != "inside.example":
            return look_up(host, port, **rest)
        return [(family, 1, 6, "", (inside, port))]

    monkeypatch.setattr(socket, "getaddrinfo", answered)
    hub[0]["/config.json"] = "http://inside.example/config.json"
    assert "it is redirected to inside.example, which is not a public address" in why()


def test_a_first_host_that_moves_inside_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that changes its mind between two requests earns nothing."""
    answers = [[(socket.AF_INET, 1, 6, "", (place, 443))] for place in ("8.8.8.8", "10.0.0.7")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    way = request.RequestRoute("https://evil.example/config.json")
    request.connect_to("evil.example", 443, 1.0, way).close()
    with pytest.raises(HubError, match="not a public address"):
        request.connect_to("evil.example", 443, 1.0, way)


def test_a_private_mirror_redirects_to_its_own_network(
    hub: tuple[dict[str, bytes | str], Asked],
) -> None:
    """A command line's HF_ENDPOINT may be inside, and have its files on another host there."""
    with serving({"/stored": CONFIG_BYTES}) as (address, _):
        hub[0]["/config.json"] = f"{address}/stored"
        assert hub_checkpoint("owner/tiny").config == CONFIG


@pytest.mark.parametrize("place", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]"])
def test_a_private_mirror_does_not_redirect_to_link_local_addresses(
    place: str, hub: tuple[dict[str, bytes | str], Asked]
) -> None:
    """A cloud's metadata is there, and no mirror."""
    hub[0]["/config.json"] = f"http://{place}/latest/meta-data/"
    assert "which is not a public address" in why()


def test_a_redirect_to_an_ip_address_is_judged_in_front_of_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy looks names up, but an address that is spelled out is not passed to it."""
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example")
    with serving({"/config.json": "http://169.254.169.254/x"}) as (address, asked):
        monkeypatch.setenv("http_proxy", address)
        assert "which is not a public address" in why()
    assert [path for path, _ in asked] == [
        "http://mirror.example/owner/tiny/resolve/main/config.json"
    ]
