"""The page of plans: points are clicked, a plan opens, two are compared; also by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from gpu_mem_calculator.report.plan.page import plan_page
from tests.corpus import sampled
from tests.report.plans_fixture import some_plans

from .chrome import Visit
from .conftest import Visitor
from .reading import SERVE, TRAIN
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


@pytest.mark.proof
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
    """The address has the question; a changed form marks the answer, a mistake is a sentence."""
    page = opened(visit, "plan").page
    settled(page)
    assert page.get_by_role("combobox", name="Model").input_value() == "GPT-2 124M"
    expect(page.locator(".asked")).to_contain_text("gpt2 on 2 × NVIDIA H200")
    assert shown(page) == ["1"]
    expect(page.locator(".plan").first).to_contain_text("PyTorch DDP")
    page.locator('.rank[data-plan="2"]').click()
    assert shown(page) == ["2"]
    page.get_by_role("spinbutton", name="GPUs").fill("3")
    expect(page.locator("#notice")).to_contain_text("The form has changed")
    visit.provoked.add(422)
    page.get_by_label("Tokens in all").fill("many")
    page.get_by_role("button", name="Plan again").click()
    expect(page.locator("#problems")).to_contain_text("“Tokens in all” 'many'")
    assert "gpus=3" in page.url


def settled(page: Page) -> None:
    """Wait until the search is over."""
    expect(page.locator("#busy progress")).to_have_count(0)


def test_a_link_has_the_question_and_what_is_open(visit: Visit) -> None:
    """Opened again, the plan and the one beside it are there, and nothing is searched again."""
    page = opened(visit, "plan").page
    settled(page)
    page.locator('.rank[data-plan="2"]').click()
    page.locator('[data-keep="2"]').click()
    page.locator('.rank[data-plan="1"]').click()
    assert shown(page) == ["1", "2"]
    assert "open=" in page.url
    assert "compare=" in page.url
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/api/plan" in one.url else None)
    page.reload()
    page.locator(".plan").first.wait_for(state="attached")
    assert shown(page) == ["1", "2"]
    assert asked == []


def test_from_a_plan_to_the_calculator_and_back(visit: Visit) -> None:
    """One click each way: the run file is set, and the plans are those that were found."""
    page = opened(visit, "plan").page
    settled(page)
    page.locator('.rank[data-plan="2"]').click()
    page.locator('.plan[data-rank="2"]').get_by_role("link", name="Open in the calculator").click()
    visit.settle()
    assert "model.name=gpt2" in page.url
    assert "engine.type=pytorch_ddp" in page.url
    page.locator("#actions").get_by_role("link", name="Plan").click()
    page.locator(".plan").first.wait_for(state="attached")
    assert shown(page) == ["2"]
    expect(page.locator("#busy")).to_contain_text("kept")


def test_the_calculator_asks_its_own_question(visit: Visit) -> None:
    """Its model, card, GPUs, sequence and batch are in the form of plans, a server's too."""
    page = visit.open(TRAIN)
    link = page.locator("#actions").get_by_role("link", name="Plan")
    expect(link).to_have_attribute(
        "href", "/plan?model=gpt2&gpus=2&gpu=h100-80gb-sxm&seq_len=512&global_batch=8"
    )
    visit.open(SERVE)
    expect(link).to_have_attribute(
        "href", "/plan?model=qwen3-0.6b&gpus=1&gpu=h100-80gb-sxm&serve=any"
    )


def test_a_search_is_shown_and_cancelled(visit: Visit) -> None:
    """What it does, and a button that ends it; what was found stays and is said to be partial."""
    question = "model=llama3.1-70b&gpus=64&gpu=h100-80gb-sxm&seq_len=8192&global_batch=1024"
    page = visit.open(f"/plan?{question}", settled=False)
    page.locator(".plan").first.wait_for()
    expect(page.locator("#busy progress")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#busy")).to_contain_text("Cancelled: the list is not complete")
    assert page.locator(".plan").count() >= 1
    assert page.locator("#busy progress").count() == 0


@pytest.mark.proof
def test_servers_are_planned(visit: Visit) -> None:
    """The other side of the switch has a server's fields; the answer compares servers."""
    page = visit.open("/plan", settled=False)
    page.get_by_role("combobox", name="Model").fill("gpt2")
    page.keyboard.press("Enter")
    page.get_by_role("spinbutton", name="GPUs").fill("1")
    page.get_by_text("Serve", exact=True).click()
    expect(page.get_by_label("Global batch")).to_be_hidden()
    page.get_by_label("Context").fill("512")
    page.get_by_label("Most ms per token").fill("50")
    page.get_by_role("button", name="Plan", exact=True).click()
    page.locator(".plan").first.wait_for()
    settled(page)
    expect(page.locator(".asked")).to_contain_text("at most 50 ms per output token")
    assert "latency=0.05" in page.url
    expect(page.locator(".ranked").first).to_contain_text("The best of each engine")


@pytest.mark.parametrize("state", sampled(["answered", "empty", "streaming"], keep=1))
def test_axe_finds_nothing_on_the_page(visitor: Visitor, state: str) -> None:
    """Before a question, while it is searched, and with an answer to another question."""
    visit = visitor(bypass_csp=True)
    if state == "answered":
        page = opened(visit, "plan").page
        settled(page)
        page.get_by_role("spinbutton", name="GPUs").fill("3")
        page.locator(".plans details").evaluate_all("all => all.forEach((one) => one.open = true)")
    else:
        question = "?model=llama3.1-70b&gpus=64&gpu=h100-80gb-sxm&seq_len=8192&global_batch=1024"
        page = visit.open(f"/plan{question if state == 'streaming' else ''}", settled=False)
        page.locator(".plan" if state == "streaming" else "#model").first.wait_for()
    assert everywhere(page) == {}
