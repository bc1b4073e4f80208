"""The picture: each instant can be looked at, and each number asked where it comes from."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .chrome import Visit
from .reading import TRAIN, kinds


def looked_at(page: Page) -> str:
    """The instant that the card shows."""
    return page.locator(".card-title").inner_text()


def test_hover(visit: Visit) -> None:
    """Pointing at an instant shows its tensors; the slice that is pointed at comes to the fore."""
    page = visit.open(TRAIN)
    peak = looked_at(page)
    assert "peak" in peak
    page.locator(".plot .slice[data-column='1'][data-kind='param']").hover()
    assert looked_at(page).startswith("2 of ")
    expect(page.locator(".card .row.looked .name")).to_have_text("parameters")
    expect(page.locator(".card h3").nth(1)).to_have_text("Largest parameters")
    assert page.locator(".card > div").nth(2).locator(".row").count() > 0


def test_arrow_keys(visit: Visit) -> None:
    """Arrow keys go through instants and kinds, and Escape back to the peak."""
    page = visit.open(TRAIN)
    picture = page.get_by_role("application")
    picture.focus()
    peak = looked_at(page)
    picture.press("Home")
    assert looked_at(page).startswith("1 of ")
    picture.press("ArrowRight")
    assert looked_at(page).startswith("2 of ")
    picture.press("ArrowUp")
    expect(page.locator(".card .row.looked")).to_have_count(1)
    expect(page.locator("#said")).to_contain_text("GiB at")
    picture.press("Escape")
    assert looked_at(page) == peak


def test_slice_explained(visit: Visit) -> None:
    """A click on a slice opens its entries with formula, numbers and source; Escape closes them."""
    page = visit.open(TRAIN)
    page.locator(".plot .slice[data-kind='param']").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading").first).to_contain_text("parameters at")
    entry = dialog.locator(".entry").first
    for name in ("In words", "Formula", "In numbers", "Where", "Alive", "Source"):
        expect(entry.get_by_text(name, exact=True)).to_be_visible()
    facts = dict(
        zip(
            entry.locator("dt").all_inner_texts(),
            entry.locator("dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["In numbers"].endswith("bytes")
    assert len(facts["Source"]) > 10
    assert dialog.locator(".letters dt").count() > 0
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_kind_explained_by_key(visit: Visit) -> None:
    """Enter on a kind of the picture opens the same as a click, and its sum is the kind's size."""
    page = visit.open(TRAIN)
    picture = page.get_by_role("application")
    picture.focus()
    picture.press("ArrowUp")
    picture.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".entry").first).to_be_visible()
    said = dialog.locator(".entry > summary .num").all_inner_texts()
    total = sum(
        float(one.split()[0]) for one in said if "GiB at the peak" in one and "<" not in one
    )
    assert abs(total - kinds(page)["parameters"]) < 0.03


def test_row_explained(visit: Visit) -> None:
    """Rows of the tables behind the picture explain themselves, too, once a table is opened."""
    page = visit.open(TRAIN)
    page.get_by_text("Every entry at the peak, with its source").click()
    row = page.locator(".part-ledger .explains").first
    name = row.inner_text()
    row.click()
    expect(page.get_by_role("dialog").locator("#explain-title")).to_have_text(name)
    expect(page.get_by_role("dialog").locator(".entry")).to_have_count(1)
