"""The page on releases has the table of what is known."""

from __future__ import annotations

from tests.docs.test_documents import ROOT, script


def test_the_page_has_the_releases_that_are_known() -> None:
    """`python docs/releases.py` would change nothing."""
    page = (ROOT / "docs" / "releases.md").read_text("utf-8")
    assert page == script("releases")["written"](page)
