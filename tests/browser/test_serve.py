"""Serving: room for how many, how fast at best, and the command that starts it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.corpus import sampled

from .chrome import Visit
from .conftest import Visitor
from .reading import SERVE, field, gib, verdict


def test_room(visit: Visit) -> None:
    """A server shows its cache in the picture, and a map of contexts by sequences at once."""
    page = visit.open(SERVE)
    assert page.locator(".plot .slice[data-kind='cache']").count() > 0
    expect(page.locator(".card .row", has_text="KV cache")).to_be_visible()
    cells = page.locator(".part-room .heat title").all_text_contents()
    assert any("does not fit" in one for one in cells)
    assert any("%" in one for one in cells)
    users = gib(verdict(page).locator(".says").inner_text())
    assert users == int(users) > 10
    expect(verdict(page).locator(".small")).to_contain_text("users at 8,192 tokens")
    expect(page.locator(".part-room")).to_contain_text("tokens")


def test_speed(visit: Visit) -> None:
    """Tokens a second are there for each number of sequences, more of them for more sequences."""
    page = visit.open(SERVE)
    part = page.locator(".part-speed")
    expect(part).to_be_visible()
    expect(part).to_contain_text("tokens")
    assert part.locator("tbody tr").count() > 2


@pytest.mark.parametrize("width", sampled([390, 1440], keep=1))
def test_speed_in_the_first_screen(visitor: Visitor, width: int) -> None:
    """Users, speed and verdict are seen without scrolling, on the phone in the strip below."""
    page = visitor(width=width, height=900).open(SERVE)
    shown = page.locator("#glance" if width < 700 else ".right")
    expect(shown).to_contain_text(re.compile(r"\d users at [\d,]+ tokens"))
    expect(shown).to_contain_text("tokens/s")
    expect(shown).to_contain_text("fits")
    place = page.locator("#glance" if width < 700 else ".pace-holder").bounding_box()
    assert place is not None
    assert place["y"] + place["height"] <= 900


@pytest.mark.parametrize("width", sampled([320, 390], keep=1))
def test_map_is_whole_on_a_phone(visitor: Visitor, width: int) -> None:
    """The map of users has fewer columns instead of some that are out of sight."""
    page = visitor(width=width).open(SERVE)
    box = page.locator(".part-room .scroll").first
    assert box.evaluate("one => one.scrollWidth <= one.clientWidth")
    assert page.locator(".part-room .heat title").count() > 8
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_command(visit: Visit) -> None:
    """The command that starts the server is copied with one click."""
    page = visit.open(f"{SERVE}&inference.tensor_parallel_size=2")
    command = page.locator(".part-start code").first.inner_text()
    assert command.startswith("vllm serve")
    assert "--tensor-parallel-size 2" in command
    page.locator(".part-start").get_by_role("button", name="Copy").click()
    expect(page.locator("#said")).to_have_text("The command is copied.")
    assert page.evaluate("navigator.clipboard.readText()") == command


@pytest.mark.proof
def test_longer_sequences(visit: Visit) -> None:
    """A shorter longest sequence lets more of them in at once; the pool stays about as it is."""
    page = visit.open(SERVE)
    said = page.locator(".part-room dd", has_text="tokens each")
    before = gib(said.inner_text())
    slider = field(page, "inference.max_seq_len").get_by_role("slider")
    visit.change(lambda: slider.press("ArrowLeft"))
    assert gib(said.inner_text()) > 1.2 * before


@pytest.mark.proof
def test_other_servers(visit: Visit) -> None:
    """Each kind of server shows what it has, and nothing of the one before it."""
    page = visit.open(f"{SERVE}&inference.gpu_memory_utilization=0.8")
    engine = field(page, "inference.engine").get_by_role("combobox")
    for name in ("SGLang", "TensorRT-LLM", "TGI", "llama.cpp", "transformers"):
        visit.change(lambda name=name: engine.select_option(label=name))
        expect(page.locator(".notice")).to_be_hidden()
        expect(verdict(page)).to_contain_text("GiB")
