"""The page of measured runs: filter, sort, open."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from .chrome import Visit
from .reading import gib


def opened(visit: Visit, path: str = "/accuracy") -> Page:
    """The page with its table."""
    page = visit.open(path, settled=False)
    page.locator("#runs tbody tr").first.wait_for()
    return page


def figures(page: Page, name: str) -> list[float]:
    """A column of the table, in its order."""
    return [gib(one) for one in page.locator(f"#runs tbody td.{name}").all_inner_texts()]


def test_lead(visit: Visit) -> None:
    """The page says first how close it is, and draws that beside other calculators."""
    page = opened(visit)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    row = re.search(r"all measured runs [^\n]*?\| (\d+) \| allocated", readme)
    assert row is not None
    expect(page.locator("#lead")).to_contain_text(f"the mean of {row[1]} measured runs")
    expect(page.locator("#beside svg")).to_be_visible()
    assert page.locator("#training tbody tr").count() > 5


def test_filter(visit: Visit) -> None:
    """A word leaves the runs that have it, a word that none has is told, and so is a way out."""
    page = opened(visit)
    before = gib(page.locator("#found").inner_text())
    page.get_by_label("Find").fill("deepspeed")
    assert 0 < gib(page.locator("#found").inner_text()) < before
    for row in page.locator("#runs tbody tr:not(.under)").all_text_contents():
        assert "deepspeed" in row.lower()
    page.get_by_label("Find").fill("no such run")
    expect(page.locator("#found")).to_have_text("No run is like that; clear a filter.")


def test_sort(visit: Visit) -> None:
    """A click on a column's head sorts by it, another one the other way round."""
    page = opened(visit)
    head = page.get_by_role("button", name="measured", exact=True)
    head.click()
    falling = figures(page, "measured")
    assert falling == sorted(falling, reverse=True)
    expect(page.locator("#runs th", has=head)).to_have_attribute("aria-sort", "descending")
    head.click()
    rising = figures(page, "measured")
    assert rising == sorted(rising)
    assert rising != falling


def test_open_a_run(visit: Visit) -> None:
    """A run opens to its phases and its run file, also on a phone, and closes again."""
    page = opened(visit)
    page.get_by_label("Find").fill("fam-gpt2")  # it has phases
    row = page.locator("#runs .opens").first
    row.click()
    expect(row).to_have_attribute("aria-expanded", "true")
    inside = page.locator("#runs .under:visible")
    expect(inside).to_have_count(1)
    assert len(inside.inner_text()) > 100
    page.set_viewport_size({"width": 390, "height": 900})
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    lines = inside.locator(".phase-bars .predicted")
    assert lines.evaluate_all("all => all.map(one => getComputedStyle(one).display)")[0] != "none"
    row.click()
    expect(inside).to_have_count(0)


def test_group_of_a_link(visit: Visit) -> None:
    """A link to a group shows its runs alone; a click on a group's name is such a link."""
    page = opened(visit)
    link = page.locator("#training tbody a").first
    title = link.inner_text()
    link.click()
    expect(page.locator("#group option:checked")).to_have_text(title)
    assert set(page.locator("#runs tbody td.wide").all_inner_texts()) == {title}


def test_show_all(visit: Visit) -> None:
    """At first some rows are shown, and all of them on a click."""
    page = opened(visit)
    few = page.locator("#runs .opens").count()
    page.get_by_role("button", name="Show all").click()
    assert page.locator("#runs .opens").count() == gib(page.locator("#found").inner_text()) > few
