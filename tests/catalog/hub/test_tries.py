"""What may be otherwise in a moment is asked again: how often, how long, and then what is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from gpu_mem_calculator.catalog.hub import request
from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.bounds import Allowance, HubError
from gpu_mem_calculator.catalog.hub.request import MOST_WAIT
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint
from tests.catalog.hub.models import MANY, ONE
from tests.catalog.hub.servers import Hub, Trouble, hub, hung_up, instead, slow, status, truncated
from tests.catalog.hub.test_checkpoint import CONFIG


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with two models."""
    with hub({"owner/one": ONE, "owner/many": MANY}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        yield running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, without waiting."""
    waited: list[float] = []
    monkeypatch.setattr(Allowance, "pause", lambda _, seconds: waited.append(seconds))
    return waited


def why(name: str = "owner/one") -> str:
    """What is said in the end."""
    with pytest.raises(HubError) as caught:
        hub_checkpoint(name, headers=True)
    return str(caught.value).partition(": ")[2]


@pytest.mark.parametrize(
    "trouble", [*map(status, (408, 429, 500, 502, 503, 504)), hung_up, truncated(7), truncated(0)]
)
def test_three_times_trouble_and_then_an_answer(
    there: Hub, trouble: Trouble, pauses: list[float]
) -> None:
    """Each pause is longer than half of the one before it could be, and none is longer than 2 s."""
    there.trouble("/config.json", trouble, trouble, trouble)
    assert hub_checkpoint("owner/one").config == CONFIG
    assert len(pauses) == 3
    assert all(0.25 * 2**n <= pause <= 0.5 * 2**n for n, pause in enumerate(pauses))


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (status(503), "the server has trouble (HTTP 503); try again later"),
        (status(429), "too many requests (HTTP 429); try again later"),
        (hung_up, "cannot be reached, Remote end closed connection without response"),
        (truncated(7), f"it ends after 7 of {len(ONE['config.json'])} bytes"),
    ],
)
def test_trouble_that_stays_is_a_sentence(
    there: Hub, trouble: Trouble, message: str, pauses: list[float]
) -> None:
    """After four tries; the next look-up within a minute says the same and asks nobody."""
    there.trouble("/config.json", *[trouble] * 4)
    assert why() == message
    asked = len(there.asked)
    assert asked == 8  # each is sent on once
    assert why() == message
    assert len(there.asked) == asked
    assert len(pauses) == 3


@pytest.mark.parametrize("code", [400, 404, 501])
def test_what_will_not_change_is_asked_once(there: Hub, code: int, pauses: list[float]) -> None:
    """Nobody waits for it."""
    there.trouble("/config.json", status(code))
    why()
    assert not pauses


def test_a_server_says_how_long(there: Hub, pauses: list[float]) -> None:
    """In seconds or as a date, up to a bound."""
    there.trouble(
        "/config.json",
        status(429, Retry_After="7"),
        status(503, Retry_After=formatdate(time.time() + 20, usegmt=True)),
        status(503, Retry_After="soon"),
    )
    assert hub_checkpoint("owner/one").config == CONFIG
    assert pauses[0] == 7
    assert 15 < pauses[1] <= 20
    assert pauses[2] < 3


def test_a_server_that_wants_to_be_left_alone_is(there: Hub, pauses: list[float]) -> None:
    """A longer wait than the bound is refused, in a sentence."""
    there.trouble("/config.json", status(429, Retry_After=f"{MOST_WAIT + 90:.0f}"))
    assert why().endswith("(HTTP 429); try again later, in 120 seconds as it says")
    assert not pauses


def test_no_pause_is_longer_than_what_is_left(there: Hub, pauses: list[float]) -> None:
    """The allowance of a look-up holds for its tries, too."""
    allow(Access(seconds=5.0))
    there.trouble("/config.json", status(503, Retry_After="6"))
    assert "HTTP 503" in why()
    assert not pauses


def test_a_slow_answer_ends_in_time(there: Hub) -> None:
    """A byte at a time keeps no connection alive for longer than the look-up may take."""
    allow(Access(seconds=0.5))
    there.trouble("/config.json", slow(0.05))
    began = time.monotonic()
    assert why() == "it takes longer than 0.5 seconds"
    assert time.monotonic() - began < 3


def test_a_silent_server_ends_in_time(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try waits for the first byte, and is then over."""
    monkeypatch.setattr(request, "SECONDS", 0.2)
    there.trouble("/config.json", *[slow(1.0)] * 4)
    began = time.monotonic()
    assert "timed out" in why()
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("/config.json", b"<!doctype html><title>Sign in</title>", "a web page and not JSON"),
        ("/config.json", b"[1, 2]", "not a JSON object"),
        ("/config.json", b'{"model_type": "lla', "not valid JSON"),
        ("/config.json", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS's pointer"),
        ("/config.json", b"", "not valid JSON"),
        ("/config.json", b"[" * 100_000, "not valid JSON"),
        ("/model.safetensors", b"<html>" * 9, "not a safetensors file"),
        (
            "/model.safetensors",
            b"\x08" + bytes(7) + b"not json",
            "its safetensors header is broken",
        ),
        ("/model.safetensors", b"", "not a safetensors file"),
    ],
)
def test_wrong_content_is_a_sentence(
    there: Hub, file: str, data: bytes, message: str, pauses: list[float]
) -> None:
    """Said at once: asking again would bring the same."""
    there.trouble(file, *[instead(data)] * 2)
    assert message in why()
    assert not pauses


def test_a_server_without_ranges_is_a_sentence(there: Hub) -> None:
    """Whole files of weights are not downloaded."""

    def everything(handler: object, data: bytes) -> None:
        handler.headers.replace_header("Range", "")  # type: ignore[attr-defined]
        handler.send(data)  # type: ignore[attr-defined]

    there.trouble("/model.safetensors", everything)
    assert "the server sends whole files only" in why()


def test_a_config_that_is_no_config_is_not_downloaded(there: Hub) -> None:
    """A file larger than any config ends before its first byte."""

    def huge(handler: object, _: bytes) -> None:
        handler.send_response(200)  # type: ignore[attr-defined]
        handler.send_header("Content-Length", str(2**40))  # type: ignore[attr-defined]
        handler.end_headers()  # type: ignore[attr-defined]

    there.trouble("/config.json", huge)
    assert why() == "it is larger than 25,165,824 bytes"


def test_headers_that_are_cut_are_asked_for_again(there: Hub) -> None:
    """Of many files at once, each by itself."""
    for number in range(6):
        there.trouble(f"/model-{number:02}.safetensors", truncated(3), status(500))
    assert len(hub_checkpoint("owner/many", headers=True).tensors) == 12


def test_an_older_checkpoint_has_no_headers(there: Hub) -> None:
    """Without safetensors files its config says how large it is."""
    there.models = {"owner/one": {"config.json": ONE["config.json"]}}
    assert hub_checkpoint("owner/one", headers=True).tensors == ()


def test_bytes_of_all_files_are_counted_together(there: Hub) -> None:
    """Also where several come at once."""
    allow(Access(size=len(MANY["config.json"]) + len(MANY["model.safetensors.index.json"]) + 400))
    assert "larger than" in why("owner/many")


def test_the_first_broken_file_ends_the_others(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for another try do not, and no thread is left."""
    monkeypatch.undo()
    monkeypatch.setenv("HF_ENDPOINT", there.address)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    there.trouble("/model-00.safetensors", instead(b"<html>" * 9))
    for number in range(1, 8):
        there.trouble(f"/model-{number:02}.safetensors", status(503, Retry_After="20"))
    began = time.monotonic()
    assert "not a safetensors file" in f": {why('owner/many')}"
    assert time.monotonic() - began < 5
    assert not [one for one in threading.enumerate() if "ThreadPool" in one.name]
