"""How much a look-up may take, how long it is remembered, and which names are looked up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_mem_calculator.catalog.hub import bounds, sources
from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.bounds import HubError
from gpu_mem_calculator.catalog.hub.names import hub_name
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint
from tests.catalog.hub.local_hub import CONFIG_BYTES, LOCAL, SECRET, hub, online, why
from tests.catalog.hub.servers import Asked
from tests.catalog.hub.test_checkpoint import CONFIG, gguf_bytes, safetensors_bytes

__all__ = ["hub", "online"]  # fixtures


def test_a_token_that_no_header_holds_is_not_told(
    hub: tuple[dict[str, bytes | str], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence names the variable; a line's end around the token does no harm."""
    monkeypatch.setenv("HF_TOKEN", f"{SECRET}\nX-More: 1")
    assert "HF_TOKEN has a character" in why()
    assert not hub[1]
    monkeypatch.setenv("HF_TOKEN", f"{SECRET}\n")
    assert hub_checkpoint("owner/other").config == CONFIG


def test_going_in_circles_ends(hub: tuple[dict[str, bytes | str], Asked]) -> None:
    """After ten times."""
    hub[0]["/config.json"] = "/owner/tiny/resolve/main/config.json"
    assert "sent on more than 10 times" in why()
    assert len(hub[1]) == 11


@pytest.mark.parametrize("limits", [{"size": 100}, {"seconds": 0.0}])
def test_a_look_up_is_bounded(
    limits: dict[str, Any], hub: tuple[dict[str, bytes | str], Asked]
) -> None:
    """In bytes and in time, all its requests together."""
    allow(Access(files=False, hosts=LOCAL.hosts, **limits))
    message = why()
    assert "larger than 100 bytes" in message or "longer than 0 seconds" in message


def test_a_slow_answer_ends_with_the_time(
    hub: tuple[dict[str, bytes | str], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is counted between the pieces of an answer, too."""
    allow(Access(files=False, hosts=LOCAL.hosts, seconds=50.0))
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(bounds, "monotonic", lambda: float(next(clock)))
    assert "longer than 50 seconds" in why()


def test_a_failure_is_told_again_for_a_minute_only(
    hub: tuple[dict[str, bytes | str], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the hub is asked again; a result is not asked for twice."""
    del hub[0]["/config.json"]
    clock = [1000.0]
    monkeypatch.setattr(sources, "monotonic", lambda: clock[0])
    assert why() == why()
    assert len(hub[1]) == 1
    hub[0]["/config.json"] = CONFIG_BYTES
    why()
    clock[0] += sources.RETRY_SECONDS
    assert hub_checkpoint("owner/tiny", headers=True) is hub_checkpoint("owner/tiny", headers=True)
    asked = len(hub[1])
    hub_checkpoint("owner/tiny")
    assert len(hub[1]) == asked


def test_what_was_found_is_not_told_to_those_who_may_not_ask(
    hub: tuple[dict[str, bytes | str], Asked],
) -> None:
    """A cached answer holds for the access of its look-up only."""
    assert hub_checkpoint("owner/tiny").config == CONFIG
    allow(Access(files=False, hosts=frozenset()))
    assert "look-ups are off" in why()
    allow(Access(files=False, hosts=frozenset({"other.example"})))
    assert "may not contact" in why()


def test_a_service_says_nothing_of_the_hubs_whereabouts(
    hub: tuple[dict[str, bytes | str], Asked],
) -> None:
    """A missing model and a closed one sound alike, without an address."""
    allow(LOCAL)
    hub[0].clear()
    assert why("some/thing") == (
        "model.name='some/thing' is not a preset, and not read from the hub: "
        "some/thing/config.json: it is not there, or not open to this service; "
        "paste its config.json instead"
    )


@pytest.mark.parametrize(
    "name",
    [
        "owner/..",
        "../model",
        "owner/model/../../x.gguf",
        "-a/b",
        "owner/.git",
        "owner/a//b.gguf",
        "owner/modèl",
        "owner/model?x",
        "owner/model#x",
        "owner/%2e%2e",
        "owner/model\n",
    ],
)
def test_names_that_lead_elsewhere_are_not_the_hubs(name: str) -> None:
    """Nothing that climbs, and no sign that an address has a meaning for."""
    assert not hub_name(name)


def test_a_service_looks_up_models_and_no_files_in_them() -> None:
    """owner/model, and that is all."""
    allow(LOCAL)
    assert hub_name("owner/model")
    assert not hub_name("owner/model/file.gguf")


@pytest.mark.parametrize(
    "shard",
    [
        "../../../other/secret/resolve/main/model.safetensors",
        "/etc/passwd",
        "https://evil.example/x",
        "a/../b",
        "x?y",
        "",
        "a\\b",
        "%2e%2e/x",
    ],
)
def test_an_index_names_files_of_its_own_folder(
    shard: str, hub: tuple[dict[str, bytes | str], Asked]
) -> None:
    """Whoever made the checkpoint does not choose what else is read."""
    hub[0]["/model.safetensors.index.json"] = json.dumps({"weight_map": {"w": shard}}).encode()
    assert "is not a file of its folder" in why()
    assert len(hub[1]) == 2


def test_tensors_of_impossible_shapes_are_a_sentence(
    hub: tuple[dict[str, bytes | str], Asked],
) -> None:
    """No product of a million sizes is computed."""
    hub[0]["/model.safetensors"] = safetensors_bytes({"w": ("F32", [2**62] * 1000, 4)})
    assert "header is broken" in why()
    many = gguf_bytes().replace(b"blk.0.ffn_up.weight\x02", b"blk.0.ffn_up.weight\x40")
    hub[0]["/tiny.gguf"] = many
    with pytest.raises(HubError, match="header is broken"):
        hub_checkpoint("owner/tiny/tiny.gguf")
