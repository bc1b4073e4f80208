"""What goes wrong: a service that is away, slow or ill; and the watch over the page itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .chrome import Visit
from .conftest import Visitor
from .reading import SERVE, TRAIN, field, sizes, verdict

API = re.compile("/api/")


def test_service_goes_away(visit: Visit) -> None:
    """A service that is away is told with the last result kept; Try again works once it is back."""
    visit.provoked = {0}
    page = visit.open(TRAIN)
    before = sizes(page)
    page.route(API, lambda route: route.abort("connectionrefused"))
    slider = field(page, "training.batch_size").get_by_role("slider")
    slider.press("ArrowRight")
    notice = page.locator(".notice")
    expect(notice).to_contain_text("The service does not answer; is it still running?")
    assert sizes(page) == before
    page.unroute(API)
    visit.change(notice.get_by_role("button", name="Try again").click)
    expect(notice).to_be_hidden()
    assert sizes(page)["Allocated"] > before["Allocated"]


@pytest.mark.proof
def test_service_away_at_the_start(visit: Visit) -> None:
    """A page whose service is away from the start says so, and can be tried again."""
    visit.provoked = {0}
    page = visit.page
    page.route(API, lambda route: route.abort("connectionrefused"))
    visit.open(TRAIN, settled=False)
    expect(page.locator("#form .problems")).to_contain_text("does not answer")
    page.unroute(API)
    page.locator("#form").get_by_role("button", name="Try again").click()
    visit.settle()
    expect(verdict(page)).to_contain_text("fits")


def test_busy_service(visit: Visit) -> None:
    """A service that is busy is asked again after the time it says, without a word to the user."""
    visit.provoked = {503}
    page = visit.open(TRAIN)
    said = {"status": 503, "headers": {"Retry-After": "1"}, "json": {"detail": "busy"}}
    page.route(re.compile("/api/look"), lambda route: route.fulfill(**said), times=1)
    slider = field(page, "training.batch_size").get_by_role("slider")
    visit.change(lambda: slider.press("ArrowRight"))
    expect(page.locator(".notice")).to_be_hidden()


def test_replay_that_fails(visit: Visit) -> None:
    """Where the replay takes too long, the ledger stays, and the page says what is missing."""
    visit.provoked = {504}
    page = visit.page
    said = {"status": 504, "json": {"detail": "it took too long", "problems": ["it took too long"]}}
    page.route(re.compile("replay=true"), lambda route: route.fulfill(**said))
    visit.open(TRAIN.replace("h100-80gb-sxm", "rtx-3070"), settled=False)
    expect(page.locator(".status")).to_have_text("no replay: it took too long")
    assert sizes(page)["Allocated"] > 0
    expect(page.locator(".verdict .says")).to_have_text("? cannot tell")


@pytest.mark.proof
def test_picture_that_fails(visit: Visit) -> None:
    """A picture that cannot be saved is told at the button."""
    visit.provoked = {503}
    page = visit.open(SERVE)
    page.route(
        re.compile("picture.svg"), lambda route: route.fulfill(status=503, json={"detail": "busy"})
    )
    page.get_by_role("button", name="Save").click()
    page.get_by_role("menuitem").filter(has_text="Picture, SVG").click()
    expect(page.locator("#said")).to_contain_text("busy")


def test_the_watch(visitor: Visitor) -> None:
    """A request elsewhere, an error and a line of the console are noticed, an answer is not 422."""
    visit = visitor(bypass_csp=True)
    page = visit.open("/docs", settled=False)
    page.evaluate(
        "() => { setTimeout(() => { throw new Error('a slip') }); console.error('a line') }"
    )
    page.evaluate("fetch('http://elsewhere.example/').catch(() => {})")
    page.evaluate("fetch('/api/preset/none').catch(() => {})")
    page.wait_for_timeout(0)
    assert visit.strangers == ["http://elsewhere.example/"]
    assert any("a slip" in one for one in visit.errors)
    assert "a line" in visit.errors
    assert any("404" in one for one in visit.errors)
    visit.strangers.clear()
    visit.errors.clear()
