"""The page of plans: points are clicked, a plan opens, two are compared; also by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from gpu_mem_calculator.report.plan.page import plan_page
from tests.report.plans_fixture import some_plans

from .chrome import Visit
from .test_access import everywhere
from .views import opened


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page as a file; nothing may be wrong with it, and nothing fetched."""
    (tmp_path / "plans.html").write_text(plan_page(some_plans()), encoding="utf-8")
    made = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=False).new_page()
    errors: list[str] = []
    made.on("console", lambda message: errors.append(message.text))
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.goto((tmp_path / "plans.html").as_uri())
    yield made
    made.context.close()
    assert errors == []


def shown(page: Page) -> list[str]:
    """The ranks of the plans that can be seen."""
    seen = page.locator(".plan:visible")
    return [str(one.get_attribute("data-rank")) for one in seen.all()]


def test_a_point_opens_its_plan(page: Page) -> None:
    """The first is open; a click on a point, or on a number of the table, opens another."""
    assert shown(page) == ["1"]
    page.locator('.point[data-plan="2"] .hit').click()
    assert shown(page) == ["2"]
    page.get_by_role("button", name="plan 5, DeepSpeed ZeRO-3").last.click()
    assert shown(page) == ["5"]
    expect(page.locator('.point[data-plan="5"]')).to_have_attribute("aria-pressed", "true")


def test_two_are_compared(page: Page) -> None:
    """The one that is kept stays; what differs is marked."""
    page.locator('.plan[data-rank="1"]').get_by_role("button", name="Compare").click()
    page.locator('.point[data-plan="4"] .hit').click()
    assert shown(page) == ["1", "4"]
    expect(page.locator("[data-says]")).to_have_text(
        "Plan 1 beside plan 4; what differs is marked."
    )
    page.locator('.point[data-plan="3"] .hit').click()
    assert shown(page) == ["1", "3"]
    marked = page.locator(".differs")
    assert "no recompute" in marked.all_inner_texts()
    page.get_by_role("button", name="Stop comparing").click()
    assert shown(page) == ["1"]
    assert marked.count() == 0


def test_arrow_keys_move_along_the_plans(page: Page) -> None:
    """One stop of the tabulator, then by memory."""
    page.locator('.point[tabindex="0"]').focus()
    page.keyboard.press("Home")
    assert shown(page) == ["5"]
    page.keyboard.press("ArrowRight")
    assert shown(page) == ["3"]
    page.keyboard.press("End")
    assert shown(page) == ["1"]
    assert page.locator('.point[tabindex="0"]').count() == 1


def test_axe_finds_nothing(browser: Browser, tmp_path: Path) -> None:
    """In both themes and widths."""
    (tmp_path / "plans.html").write_text(plan_page(some_plans()), encoding="utf-8")
    page = browser.new_context(bypass_csp=True).new_page()
    page.goto((tmp_path / "plans.html").as_uri())
    page.locator('.plan[data-rank="1"]').get_by_role("button", name="Compare").click()
    page.locator('.rank[data-plan="3"]').click()
    assert {place: found for place, found in everywhere(page).items() if found} == {}
    page.context.close()


def test_the_service_plans(visit: Visit) -> None:
    """The address has the question; a changed form asks again, a mistake is a sentence."""
    page = opened(visit, "plan").page
    assert page.get_by_label("Model").input_value() == "gpt2"
    assert shown(page) == ["1"]
    expect(page.locator(".plan").first).to_contain_text("PyTorch DDP")
    page.locator('.rank[data-plan="2"]').click()
    assert shown(page) == ["2"]
    visit.provoked.add(422)
    page.get_by_label("Card").fill("no-such-card")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#problems")).to_contain_text("no-such-card")
    assert page.locator(".plan").count() == 0
    assert "gpu=no-such-card" in page.url
