"""One browser for the folder, a page for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, expect, sync_playwright

from .chrome import Visit, launched

WAIT = 30_000  # milliseconds that anything may take on a machine that is busy with other tests
Visitor = Callable[..., Visit]
# A page begins without what the page before it kept, but keeps its own when it is loaded again.
FRESH = """if (origin !== "null" && !sessionStorage.fresh) {
  localStorage.clear();
  sessionStorage.fresh = "no";
}"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser. Not for the session: its event loop would be in the way of other tests'."""
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        try:
            made = launched(playwright)
        except Error as error:
            pytest.skip(f"no browser on this machine; `make test` installs one: {error.message}")
        yield made
        made.close()


@pytest.fixture(scope="package")
def contexts(browser: Browser) -> Iterator[dict[str, BrowserContext]]:
    """Contexts by their options: pages of one share what the browser has loaded."""
    made: dict[str, BrowserContext] = {}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture
def visitor(
    browser: Browser, contexts: dict[str, BrowserContext], service: str
) -> Iterator[Visitor]:
    """Makes visits: visitor(width=390). After the test, none of them did anything odd."""
    visits: list[Visit] = []

    def made(width: int = 1440, height: int = 900, **options: Any) -> Visit:
        options = {"reduced_motion": "reduce", "accept_downloads": True, **options}
        if repr(options) not in contexts:
            contexts[repr(options)] = _context(browser, service, options)
        page = contexts[repr(options)].new_page()
        page.set_viewport_size({"width": width, "height": height})
        visits.append(Visit(page, service))
        visits[-1].note()
        return visits[-1]

    yield made
    for one in visits:
        one.page.close()
        assert not one.strangers, "the page asked for something that is not the service's"
        assert not one.errors


def _context(browser: Browser, service: str, options: dict[str, Any]) -> BrowserContext:
    context = browser.new_context(**options)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=service)
    context.set_default_timeout(WAIT)
    context.add_init_script(FRESH)
    return context


@pytest.fixture
def visit(visitor: Visitor) -> Visit:
    """A visit with a wide screen."""
    return visitor()
