"""Settings from an environment, and starting with them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.web import run
from gpu_mem_calculator.web.settings import PREFIX, ServiceSettings, environment, from_environment


def test_the_defaults_are_safe() -> None:
    """This machine alone, and no look-ups."""
    found = from_environment({})
    assert found.host == "127.0.0.1"
    assert not found.hub


def test_an_environment_is_read() -> None:
    """Numbers, yes and no, lists; what is empty is left out."""
    given = {"PORT": "9000", "HUB": "true", "HUB_HOSTS": "a.example,.b.example", "WORKERS": ""}
    found = from_environment({PREFIX + name: value for name, value in given.items()})
    assert (found.port, found.hub, found.workers) == (9000, True, 1)
    assert found.hub_hosts == ["a.example", ".b.example"]


def test_settings_go_to_other_processes_unchanged() -> None:
    """What one process was told, the next reads."""
    settings = ServiceSettings(port=1234, hub=True, slow_seconds=2.5, hub_hosts=["x.example"])
    assert from_environment(environment(settings)) == settings


def test_every_wrong_setting_is_told() -> None:
    """Each with its name and value."""
    with pytest.raises(InputError) as caught:
        from_environment({PREFIX + "PORT": "99999", PREFIX + "LOG_LEVEL": "loud"})
    assert len(caught.value.problems) == 2
    assert "GPU_MEM_CALC_PORT='99999'" in caught.value.problems[0]


def test_serve_starts_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options win over the environment; a host that others reach is mentioned."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(run.uvicorn, "run", lambda app, **given: seen.update(given))
    monkeypatch.setattr(run.os, "environ", {**run.os.environ, PREFIX + "PORT": "1"})
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    assert main(["serve", "--port", str(port), "--workers", "2"]) == 0
    assert (seen["port"], seen["workers"], seen["host"]) == (port, 2, "127.0.0.1")


def test_a_port_that_is_taken_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code of bad input."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_an_address_is_what_a_browser_takes() -> None:
    """Also where it listens everywhere, or on IPv6."""
    assert run.address(ServiceSettings(host="0.0.0.0", port=80)) == "http://localhost:80"
    assert run.address(ServiceSettings(host="::1", port=80)) == "http://[::1]:80"
