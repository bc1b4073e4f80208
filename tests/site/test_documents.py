"""The documents as a site: links lead somewhere, the search finds, and everybody can read it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect

from maintenance.documents.__main__ import build
from maintenance.documents.copies import spaced
from maintenance.documents.frameworks import FOLDER, PAGES
from tests.browser.chrome import Visit

from .conftest import Files

# a table without heads, as documents have them for a word and its meaning
UNHEADED = "empty-table-header"


def test_lists_and_comments_stand_by_themselves_but_not_in_code() -> None:
    """Without a blank line, mkdocs would show a list as text."""
    lines = ["Two:", "- one", "- two", "  more", "- three", "<!-- x -->", "| a |"]
    apart = ["Two:", "", "- one", "- two", "  more", "- three", "", "<!-- x -->", "", "| a |"]
    assert spaced(lines) == apart
    code = ["```", "a", "- b", "```"]
    assert spaced(code) == code


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; mkdocs refuses links and anchors that lead nowhere."""
    folder = tmp_path_factory.mktemp("documents") / "documents"
    assert build(folder) == 0
    return folder


@pytest.fixture
def visit(documents: Path, browser: Browser) -> Iterator[Visit]:
    """A visit that asks no other host."""
    handler = partial(Files, directory=documents.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        made = Visit(page, f"http://127.0.0.1:{server.server_port}/{documents.name}")
        made.note()
        yield made
        page.close()
        server.shutdown()
    assert not made.strangers
    assert not made.errors


def violations(page: Page) -> list[str]:
    """What axe finds wrong."""
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate("axe.run(document)")["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["id"] != UNHEADED]


@pytest.mark.proof
def test_a_word_is_found(visit: Visit) -> None:
    """Without a service, and without another host."""
    page = visit.open("/index.html", settled=False)
    page.fill(".md-search__input", "fragmentation")
    found = page.locator(".md-search-result__item")
    expect(found.first).to_contain_text("fragmentation", ignore_case=True)


@pytest.mark.proof
@pytest.mark.parametrize(
    "name", ["tutorials/will-it-fit", f"{FOLDER}/vllm", "how-it-works", "index"]
)
def test_axe(visit: Visit, name: str) -> None:
    """Nothing that axe knows of is wrong."""
    assert violations(visit.open(f"/{name}.html", settled=False)) == []


@pytest.mark.proof
@pytest.mark.parametrize("name", PAGES)
def test_a_framework_s_page_has_its_allocations(documents: Path, name: str) -> None:
    """With instants or entries, and what was assumed."""
    text = (documents / FOLDER / f"{name}.html").read_text("utf-8")
    assert text.count("<tr>") > 8
    assert "Defaults that count" in text
