"""How it looks: themes, paper, a phone, and less motion."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .chrome import Visit
from .conftest import Visitor
from .reading import TRAIN

PAPER = "getComputedStyle(document.documentElement).backgroundColor"


def test_theme_is_kept(visit: Visit) -> None:
    """The button goes through light and dark, and the next page begins as it was left."""
    page = visit.open("/accuracy", settled=False)
    light = page.evaluate(PAPER)
    button = page.get_by_role("button", name="Theme")
    button.click()
    expect(button).to_have_text("Theme: light")
    button.click()
    expect(button).to_have_text("Theme: dark")
    dark = page.evaluate(PAPER)
    assert dark != light
    visit.open("/docs", settled=False)
    expect(page.get_by_role("button", name="Theme")).to_have_text("Theme: dark")
    assert page.evaluate(PAPER) == dark


def test_theme_of_the_system(visitor: Visitor) -> None:
    """Without a choice, the page is as dark as the system is."""
    page = visitor(color_scheme="dark").open("/docs", settled=False)
    assert int(re.findall(r"\d+", page.evaluate(PAPER))[0]) < 60


def test_on_paper(visit: Visit) -> None:
    """On paper, the form and the buttons are gone; the set-up is there in words."""
    page = visit.open(TRAIN)
    expect(page.locator("#form")).to_be_visible()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for gone in ("#form", "#actions", ".card", "header.site nav", ".chips .more"):
        expect(page.locator(gone)).to_be_hidden()
    expect(page.locator(".plot svg")).to_be_visible()
    expect(page.locator("#printed")).to_contain_text("GPT-2 124M")
    for there in (".verdict .gauge", ".part-breakdown .term"):
        expect(page.locator(there).first).to_be_visible()
    page.set_viewport_size({"width": 703, "height": 1032})  # A4 with margins of 12 mm
    assert page.evaluate("document.documentElement.scrollHeight") <= 1032


@pytest.mark.parametrize("wish", ["reduce", "no-preference"])
def test_motion(visitor: Visitor, wish: str) -> None:
    """The picture moves to its new shape, unless the reader wishes for less motion."""
    page = visitor(reduced_motion=wish).open(TRAIN, settled=False)
    seconds = page.locator(".plot .slice").first.evaluate(
        "one => parseFloat(getComputedStyle(one).transitionDuration)"
    )
    assert (seconds > 0.1) == (wish == "no-preference")


def test_verdict_stays_in_sight_on_a_desk(visitor: Visitor) -> None:
    """At the bottom beside the form, once the verdict is out of sight; it covers nothing."""
    page = visitor(width=1440, height=900).open(TRAIN)
    expect(page.locator("#glance")).to_be_hidden()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(page.locator("#glance")).to_contain_text("fits")
    strip = page.locator("#glance").bounding_box()
    form = page.locator("#form").bounding_box()
    foot = page.locator("footer.site").bounding_box()
    assert strip
    assert form
    assert foot
    assert strip["x"] >= form["x"] + form["width"]
    assert strip["y"] >= foot["y"] + foot["height"]


@pytest.mark.parametrize("name", ["model", "card"])
def test_lists_show_their_figures(visitor: Visitor, name: str) -> None:
    """The form cuts nothing off: parameters of a model, memory of a card."""
    page = visitor(width=1440, height=900).open(TRAIN)
    page.locator(f"#{name}").click()
    size = page.locator("[role=option][aria-selected=true] .option-size").bounding_box()
    form = page.locator("#form").evaluate("one => one.getBoundingClientRect().x + one.clientWidth")
    assert size
    assert size["width"] > 20
    assert size["x"] + size["width"] <= form


def test_glance_on_a_phone(visitor: Visitor) -> None:
    """On a phone, the verdict stays in sight at the bottom while the form is filled in."""
    visit = visitor(width=390, height=700)
    page = visit.open(TRAIN)
    expect(page.locator("#glance")).to_contain_text("fits")
    page.locator(".verdict").scroll_into_view_if_needed()
    expect(page.locator("#glance")).to_be_hidden()
