"""One browser for the folder, a context for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, expect, sync_playwright

from .chrome import Visit, launched

WAIT = 30_000  # milliseconds that anything may take on a machine that is busy with other tests
Visitor = Callable[..., Visit]


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


@pytest.fixture
def visitor(browser: Browser, service: str) -> Iterator[Visitor]:
    """Makes visits: visitor(width=390). After the test, none of them did anything odd."""
    visits: list[Visit] = []

    def made(width: int = 1440, height: int = 900, **options: Any) -> Visit:
        options = {"reduced_motion": "reduce", "accept_downloads": True, **options}
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=service)
        context.set_default_timeout(WAIT)
        visits.append(Visit(context.new_page(), service))
        visits[-1].note(context)
        return visits[-1]

    yield made
    for one in visits:
        one.page.context.close()
        assert not one.strangers, "the page asked for something that is not the service's"
        assert not one.errors


@pytest.fixture
def visit(visitor: Visitor) -> Visit:
    """A visit with a wide screen."""
    return visitor()
