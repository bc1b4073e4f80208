"""The picture: each instant can be looked at, and each number asked where it comes from."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .chrome import Visit
from .reading import SLICES, TRAIN, field, kinds


def looked_at(page: Page) -> str:
    """The instant that the card shows."""
    return page.locator(".card-title").inner_text()


def test_hover(visit: Visit) -> None:
    """Pointing at an instant shows its tensors; the kind that is pointed at comes to the fore."""
    page = visit.open(TRAIN)
    peak = looked_at(page)
    assert "peak" in peak
    page.locator(".plot .slice[data-kind='param']").hover()
    assert looked_at(page) != peak
    assert "layer" in looked_at(page)
    expect(page.locator(".card .row.looked .name")).to_have_text("parameters")
    expect(page.locator(".card h3").nth(1)).to_have_text("Largest parameters")
    assert page.locator(".card > div").nth(2).locator(".row").count() > 0


def test_a_step_is_a_triangle(visit: Visit) -> None:
    """Activations of each layer pile up in forward, and are freed in backward."""
    page = visit.open(TRAIN)
    tall = list(page.evaluate(SLICES)["act"].values())
    up, top = tall[:12], max(tall)
    assert up == sorted(up)
    assert up[11] > 3 * up[0]
    down = tall[tall.index(top) + 1 : -6]
    assert len(down) >= 11
    assert down == sorted(down, reverse=True)
    words = page.locator(".plot .above text").all_text_contents()
    assert {"layer", "forward", "backward", "12"} <= set(words)
    assert any(one.startswith("time: ") for one in words)
    assert {"start-up", "later steps", "saving"} <= set(words)


def test_crosshair_names_tensors(visit: Visit) -> None:
    """At a layer the crosshair says how much is there, and the card what: kept, and at work."""
    page = visit.open(TRAIN)
    picture = page.get_by_role("application")
    picture.focus()
    picture.press("Home")
    for _ in range(5):
        picture.press("ArrowRight")
    assert "forward, layer 6 of 12" in looked_at(page)
    level = page.locator(".plot .cursor .level").text_content()
    assert level
    assert level in page.locator(".card-total").inner_text()
    while page.locator(".card .row.looked .name").all_inner_texts() != ["activations"]:
        picture.press("ArrowUp")
    names = page.locator(".card > div").nth(2).locator(".row .name").all_inner_texts()
    assert "layers 1 to 5: kept for backward" in names
    assert len(names) > 3
    expect(page.locator("#said")).to_contain_text("layers 1 to 5")


def test_zoom_by_keys(visit: Visit) -> None:
    """Plus enlarges the part around the peak until tensors have names, 0 shows the whole step."""
    page = visit.open(TRAIN)
    picture, words = page.get_by_role("application"), page.locator(".zoom .soft")
    whole = len(page.evaluate(SLICES)["act"])
    picture.focus()
    picture.press("+")
    expect(words).to_contain_text("Enlarged: ")
    part = len(page.evaluate(SLICES)["act"])
    assert part > whole
    expect(page.locator("#said")).to_contain_text("Enlarged")
    picture.press("Home")
    assert ": " in looked_at(page)
    picture.press("0")
    expect(words).to_contain_text("Drag")
    assert len(page.evaluate(SLICES)["act"]) == whole


@pytest.mark.proof
def test_zoom_by_a_drag(visit: Visit) -> None:
    """A drag encloses layers, buttons show more, then all. A change of the run keeps the part."""
    page = visit.open(TRAIN)
    box = page.locator(".plot svg").bounding_box()
    assert box is not None
    y = box["y"] + 150
    page.mouse.move(box["x"] + 0.2 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.3 * box["width"], y, steps=4)
    expect(page.locator(".plot .brush")).to_have_class("brush shown")
    page.mouse.up()
    words = page.locator(".zoom .soft")
    expect(words).to_contain_text("Enlarged: forward, layer")
    expect(page.get_by_role("dialog")).to_have_count(0)
    before = words.inner_text()
    slider = field(page, "training.batch_size").get_by_role("slider")
    visit.change(lambda: slider.press("ArrowRight"))
    assert words.inner_text() == before
    page.get_by_role("button", name="Show more of the step").click()
    expect(words).not_to_have_text(before)
    page.get_by_role("button", name="Show the whole step").click()
    expect(words).to_contain_text("Drag")
    expect(page.get_by_role("button", name="Show the whole step")).to_be_disabled()


def test_textbook_first(visit: Visit) -> None:
    """The dialog begins with the published formula, numbers put in; the exact one is behind it."""
    page = visit.open(TRAIN.replace("pytorch_ddp", "fsdp"))
    page.locator(".card .row", has_text="optimizer states").click()
    dialog = page.get_by_role("dialog")
    first = dialog.locator(".textbook")
    expect(first.locator("code").first).to_have_text("16 bytes × P / dp")
    expect(first.locator("code").nth(1)).to_contain_text("= 16 × ")
    expect(first).to_contain_text("Rajbhandari")
    entry = dialog.locator(".entry").first
    expect(entry.locator("dd").first).to_have_text("8 bytes × P / dp")
    exact = entry.locator(".exact")
    expect(exact.locator("code").first).to_be_hidden()
    exact.locator("summary").click()
    expect(exact.locator("code").first).to_be_visible()


@pytest.mark.proof
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
    page.locator(".plot .slice[data-kind='param']").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading").first).to_contain_text("parameters at")
    entry = dialog.locator(".entry").first
    for name in ("Formula", "In numbers", "Where", "Alive", "Source"):
        expect(entry.get_by_text(name, exact=True).first).to_be_visible()
    facts = dict(
        zip(
            entry.locator("dt").all_inner_texts(),
            entry.locator("dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["In numbers"].endswith(("bytes", "GiB"))
    assert len(facts["Source"]) > 10
    assert dialog.locator(".letters dt").count() > 0
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


@pytest.mark.proof
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


@pytest.mark.proof
def test_row_explained(visit: Visit) -> None:
    """Rows of the tables behind the picture explain themselves, too, once a table is opened."""
    page = visit.open(TRAIN)
    page.get_by_text("Every entry at the peak, with its source").click()
    row = page.locator(".part-ledger .explains").first
    name = row.inner_text()
    row.click()
    expect(page.get_by_role("dialog").locator("#explain-title")).to_have_text(name)
    expect(page.get_by_role("dialog").locator(".entry")).to_have_count(1)
