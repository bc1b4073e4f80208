"""For everybody: no violation that axe knows of, and everything within reach of the keyboard."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page, Route, expect

from .chrome import Visit
from .conftest import Visitor
from .reading import TRAIN, field
from .test_form import pasted
from .views import VIEWS, opened

COLOURS = ((1440, "light"), (390, "dark"))
PLACES = ["header.site", "#views", "#actions", "#form", ".plot", ".card", ".chips"]
FOCUS = """places => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  const inside = (name) => one.closest(name) !== null;
  return {
    name: one.id || one.className?.baseVal || one.className || one.tagName,
    place: places.find(inside) ?? "",
    seen: style.outlineStyle !== "none" || style.boxShadow !== "none" || one.type === "radio",
    size: box.width * box.height,
  };
}"""


@pytest.fixture
def visit(visitor: Visitor) -> Visit:
    """A visit that lets axe try styles, which the service's own policy forbids."""
    return visitor(bypass_csp=True)


def violations(page: Page, colours: bool = True) -> list[str]:
    """What axe finds wrong, a line each."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options = {
        "resultTypes": ["violations"],
        "preload": False,
        "rules": {"color-contrast": {"enabled": colours}},
    }
    found = page.evaluate("options => axe.run(document, options)", options)["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


PLACED = list(itertools.product((1440, 390), ("light", "dark")))


def everywhere(page: Page, places: Iterable[tuple[int, str]] = PLACED) -> dict[str, list[str]]:
    """The violations in both themes, on a desk and on a phone.

    Contrasts, which take most of the time, are looked at once in each theme and at each width.
    """
    found = {}
    for width, theme in places:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        found[f"{theme} {width}"] = violations(page, (width, theme) in COLOURS)
    return {where: lines for where, lines in found.items() if lines}


# Where `make test` looks at a view; `make proof` looks everywhere.
ONCE = {"train": COLOURS[:1], "serve": COLOURS[1:]}
ALL = [pytest.param(view, PLACED, marks=pytest.mark.proof) for view in VIEWS]


@pytest.mark.parametrize(("view", "places"), [*ONCE.items(), *ALL])
def test_view(visit: Visit, view: str, places: list[tuple[int, str]]) -> None:
    """A view is as wide as the screen and has no violation, light or dark, desk or phone."""
    page = opened(visit, view).page
    for width in (1440, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("width => innerWidth === width", arg=width)
        wide = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide == 0, f"{wide} pixels too wide at {width}"
    assert everywhere(page, places) == {}


@pytest.mark.proof
def test_axe_explanation(visit: Visit) -> None:
    """The explanation of a number has no violation."""
    page = visit.open(TRAIN)
    page.locator(".card .row").first.click()
    page.locator(".explain .entry").first.wait_for()
    assert everywhere(page, COLOURS) == {}


@pytest.mark.proof
def test_axe_enlarged(visit: Visit) -> None:
    """A part of the step, enlarged, with its crosshair, has no violation, and fits a phone."""
    page = visit.open(TRAIN)
    picture = page.get_by_role("application")
    picture.focus()
    picture.press("+")
    expect(page.locator(".zoom .soft")).to_contain_text("Enlarged")
    picture.press("ArrowLeft")
    expect(page.locator(".plot .cursor")).to_have_class("cursor shown")
    assert everywhere(page, COLOURS) == {}
    page.set_viewport_size({"width": 320, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.proof
def test_axe_problem(visit: Visit) -> None:
    """A page with a problem, its last result dimmed, has no violation."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    field(page, "training.batch_size").get_by_role("textbox").fill("0")
    expect(page.locator(".notice")).to_be_visible()
    assert everywhere(page, COLOURS) == {}


@pytest.mark.proof
def test_axe_open_parts(visit: Visit) -> None:
    """Lists and folded parts, whose colours are the others', have no violation when open."""
    page = visit.open(TRAIN)
    page.locator(".fold, #form .group").evaluate_all("all => all.forEach(one => one.open = true)")
    page.locator(".part-instants table").wait_for()
    page.get_by_role("combobox", name="Model", exact=True).click()
    expect(page.locator("#model-list")).to_be_visible()
    assert violations(page, colours=False) == []


def test_tab_order(visit: Visit) -> None:
    """Tab goes from the header over form and picture to the chips, and shows where it is."""
    page = visit.open(TRAIN)
    places: list[str] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS, PLACES)
        assert focus["seen"], f"the focus is not seen on {focus['name']}"
        assert focus["size"] > 0, f"{focus['name']} has the focus and no size"
        if focus["place"] and focus["place"] not in places:
            places.append(focus["place"])
        if focus["place"] == ".chips":
            break
    assert places == PLACES


def test_skip_link(visit: Visit) -> None:
    """The first Tab offers to skip to the result, and Enter does."""
    page = visit.open(TRAIN)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#result")).to_be_focused()


@pytest.mark.proof
def test_axe_paste(visit: Visit) -> None:
    """The dialog with files that a command names, and with what was assumed, has no violation."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    pasted(page, "accelerate launch --config_file a.yaml sft.py --model_name_or_path gpt2")
    file = page.get_by_role("textbox", name="The text of a.yaml")
    expect(file).to_be_visible()
    assert everywhere(page, COLOURS) == {}
    file.fill("num_processes: 2")
    visit.change(lambda: page.get_by_role("button", name="Use it").click())
    assert everywhere(page, COLOURS) == {}
    page.locator("#paste-close").click()
    page.wait_for_function("() => document.documentElement.dataset.choices")
    assert everywhere(page, COLOURS) == {}


@pytest.mark.proof
def test_axe_old_result(visit: Visit) -> None:
    """What is drawn of the set-up before has no violation while the next answer is awaited."""
    page = visit.open(TRAIN)
    asked: list[Route] = []
    page.route("**/api/look*", lambda one: asked.append(one))
    page.get_by_role("button", name="One more").click()
    expect(page.locator("#result.old")).to_be_visible()
    assert everywhere(page, COLOURS) == {}
    for one in asked:
        one.continue_()
