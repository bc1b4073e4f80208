"""One browser for the folder, and pages that one test after another visits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect, sync_playwright

from gpu_mem_calculator.web.settings import ServiceSettings
from tests.services import running

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
def service() -> Iterator[str]:
    """The address of a service that calculates what several tests look at once."""
    with running(ServiceSettings(log_level="error"), remember=True) as address:
        yield address


class Pages:
    """Pages by their options: those of one share what the browser has loaded."""

    def __init__(self, browser: Browser, service: str) -> None:
        self.browser, self.service = browser, service
        self.contexts: dict[str, BrowserContext] = {}
        self.free: dict[str, list[Page]] = {}

    def take(self, options: dict[str, Any]) -> Page:
        """A page that nobody visits."""
        name = repr(options)
        if name not in self.contexts:
            self.contexts[name] = _context(self.browser, self.service, options)
        free = self.free.setdefault(name, [])
        return free.pop() if free else self.contexts[name].new_page()

    def give_back(self, options: dict[str, Any], page: Page) -> None:
        """Keep a page for the next visit."""
        self.free[repr(options)].append(page)


@pytest.fixture(scope="package")
def pages(browser: Browser, service: str) -> Iterator[Pages]:
    """The pages of all tests."""
    made = Pages(browser, service)
    yield made
    for one in made.contexts.values():
        one.close()


@pytest.fixture
def visitor(pages: Pages, service: str) -> Iterator[Visitor]:
    """Makes visits: visitor(width=390). After the test, none of them did anything odd."""
    visits: list[tuple[dict[str, Any], Visit]] = []

    def made(width: int = 1440, height: int = 900, **options: Any) -> Visit:
        options = {"reduced_motion": "reduce", "accept_downloads": True, **options}
        page = pages.take(options)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(
            media="null",
            color_scheme=options.get("color_scheme", "light"),
            reduced_motion=options["reduced_motion"],
        )
        visits.append((options, Visit(page, service)))
        visits[-1][1].note()
        return visits[-1][1]

    yield made
    for options, one in visits:
        pages.give_back(options, one.leave())
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
