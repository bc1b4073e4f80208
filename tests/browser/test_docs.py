"""The API's own page: every address, opened and tried."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from .chrome import Visit


def test_every_operation(visit: Visit, service: str) -> None:
    """Each operation of the description has its place on the page."""
    page = visit.open("/docs", settled=False)
    paths = httpx.get(f"{service}/openapi.json").json()["paths"]
    wanted = sum(len(one) for one in paths.values())
    expect(page.locator(".operation")).to_have_count(wanted)
    assert wanted > 20


def test_try_a_calculation(visit: Visit) -> None:
    """A calculation's example is sent as it stands, and answered with 200 and its numbers."""
    page = visit.open("/docs#post-api-calculate", settled=False)
    operation = page.locator("#post-api-calculate")
    expect(operation).to_have_attribute("open", "")
    operation.get_by_role("button", name="Try it").click()
    expect(operation.locator(".answer .worked")).to_contain_text("200")
    expect(operation.locator(".answer pre")).to_contain_text("allocated_bytes")
    expect(operation.get_by_label("curl command")).to_contain_text("/api/calculate")


def test_try_a_mistake(visit: Visit) -> None:
    """A body with a mistake is answered with the service's sentence."""
    visit.provoked = {422}
    page = visit.open("/docs#post-api-calculate", settled=False)
    operation = page.locator("#post-api-calculate")
    operation.get_by_label("body", exact=True).fill('{"model": {"name": "gpt2"}, "engin": {}}')
    operation.get_by_role("button", name="Try it").click()
    expect(operation.locator(".answer .failed")).to_contain_text("422")
    expect(operation.locator(".answer pre")).to_contain_text("engin")


def test_try_with_a_parameter(visit: Visit) -> None:
    """What is written into a parameter goes into the address that is asked."""
    page = visit.open("/docs#get-api-preset-name", settled=False)
    operation = page.locator("#get-api-preset-name")
    operation.get_by_label("name").fill("gpt2")
    expect(operation.get_by_label("curl command")).to_contain_text("/api/preset/gpt2")
    operation.get_by_role("button", name="Try it").click()
    expect(operation.locator(".answer .worked")).to_contain_text("200")


def test_find(visit: Visit) -> None:
    """A word leaves the operations that have it, on the page and in its contents."""
    page = visit.open("/docs", settled=False)
    page.locator(".operation").first.wait_for()
    page.get_by_label("Find an address").fill("healthz")
    expect(page.locator(".operation:visible")).to_have_count(1)
    expect(page.locator("#contents li:visible")).to_have_count(1)
    page.locator("#contents li:visible a").click()
    page.get_by_role("button", name="Try it").click()
    expect(page.locator(".answer .worked")).to_contain_text("200")
