"""Training: what opens, what moves, what fits."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .chrome import Visit
from .reading import SLICES, TRAIN, field, kinds, peak, sizes, verdict


def test_opens_with_the_picture(visit: Visit) -> None:
    """A page without a link shows a model, and the picture of its step before anything else."""
    page = visit.open()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Llama 3 8B")
    first = page.locator("#result > section:not([hidden])").first.locator("svg").first
    expect(first).to_have_class("step")
    assert len(page.evaluate(SLICES)["act"]) > 60
    assert page.locator(".plot").bounding_box()["y"] < 200
    expect(verdict(page)).to_contain_text("fits")
    said = page.locator("section:has(#h-remarks)")
    expect(said).to_contain_text("sequence of 4,096 tokens (training.seq_len)")
    length = field(page, "training.seq_len").get_by_role("textbox")
    expect(length).to_have_attribute("placeholder", "4096")
    expect(page.get_by_role("radio", name="Reward")).to_be_enabled()  # two sequences, not one


@pytest.mark.proof
def test_model_by_keyboard(visit: Visit) -> None:
    """A model is found with the keyboard alone, and what is said of memory changes with it."""
    page = visit.open(TRAIN)
    before = verdict(page).inner_text()
    model = page.get_by_role("combobox", name="Model")
    model.focus()
    page.keyboard.type("mstral 7b v0.1")  # a letter is missing
    expect(page.get_by_role("option").first).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("option").first).to_contain_text("Mistral 7B v0.1")
    visit.change(lambda: page.keyboard.press("Enter"))
    expect(model).to_have_value(re.compile("Mistral 7B v0.1"))
    assert verdict(page).inner_text() != before
    assert "mistral" in page.url


def test_too_small_a_card(visit: Visit) -> None:
    """On a card that is too small, both the colour and the words say that it does not fit."""
    page = visit.open(TRAIN.replace("gpt2", "gpt2-xl"))
    card = page.get_by_role("combobox", name="GPU", exact=True)
    card.fill("rtx 4090")
    visit.change(lambda: card.press("Enter"))
    expect(verdict(page)).to_have_class("verdict fails")
    expect(verdict(page).locator(".says")).to_contain_text("does not fit")
    colour = verdict(page).locator(".says").evaluate("one => getComputedStyle(one).color")
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    assert red > green
    assert red > blue


@pytest.mark.proof
def test_batch_slider(visit: Visit) -> None:
    """Moving the slider of the batch lets activations grow, and leaves parameters as they are."""
    page = visit.open(TRAIN)
    before, tall = kinds(page), page.evaluate(SLICES)
    slider = field(page, "training.batch_size").get_by_role("slider")
    visit.change(lambda: slider.press("ArrowRight"))
    expect(slider).to_have_attribute("aria-valuetext", "6 sequences")
    after, taller = kinds(page), page.evaluate(SLICES)
    assert after["activations"] > 1.3 * before["activations"]
    assert after["parameters"] == before["parameters"] > 0
    assert after["optimizer states"] == before["optimizer states"]
    ratios = [max(one["act"].values()) / max(one["param"].values()) for one in (tall, taller)]
    assert ratios[1] > 1.3 * ratios[0]


def test_ledger_first(visit: Visit) -> None:
    """The ledger is drawn at once; what only the replay knows follows, and the page says so."""
    held = []
    page = visit.page
    page.route(re.compile("replay=true"), lambda route: held.append(route))
    visit.open(TRAIN.replace("h100-80gb-sxm", "rtx-3070"), settled=False)
    expect(page.locator(".status")).to_have_text("replaying…")
    early = sizes(page)
    assert early["Allocated"] > 0
    assert early["Reserved"] == -1
    page.wait_for_function("() => document.querySelector('.pending') !== null")
    expect(verdict(page)).to_have_class("verdict about")
    expect(verdict(page).locator(".needs")).to_contain_text(
        re.compile(r"about [\d.]+ to [\d.]+ of")
    )
    assert not set("✓✗?") & set(verdict(page).inner_text())
    expect(page.locator(".chip")).to_have_count(0)
    held.pop().continue_()
    visit.settle()
    late = sizes(page)
    expect(verdict(page).locator(".says")).to_contain_text("✓ fits")
    assert late["Reserved"] >= late["Torch needs"] >= late["Allocated"] >= early["Allocated"]


def test_time_of_a_redraw(visit: Visit) -> None:
    """The page notes how long a change took until it was seen."""
    page = visit.open(TRAIN)
    assert float(page.evaluate("document.documentElement.dataset.redrawMs")) > 0


def test_undo_and_redo(visit: Visit) -> None:
    """Ctrl+Z takes a change back, Ctrl+Shift+Z and Ctrl+Y make it again, buttons do the same."""
    page = visit.open(TRAIN)
    before = peak(page)
    visit.change(lambda: field(page, "training.batch_size").get_by_role("slider").press("End"))
    after = peak(page)
    assert after > before
    page.locator("#result").focus()
    for keys, wanted in (
        ("Control+z", before),
        ("Control+Shift+z", after),
        ("Control+z", before),
        ("Control+y", after),
    ):
        visit.change(lambda keys=keys: page.keyboard.press(keys))
        assert peak(page) == wanted
    visit.change(page.get_by_role("button", name="Undo").click)
    assert peak(page) == before
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()


@pytest.mark.proof
def test_switch_to_serving(visit: Visit) -> None:
    """Serve shows the same model and card as a server; Train then has its own settings again."""
    page = visit.open(TRAIN)
    before = sizes(page)
    visit.change(lambda: page.get_by_text("Serve", exact=True).click())
    expect(page.get_by_role("combobox", name="Model")).to_have_value("GPT-2 124M")
    expect(page.get_by_role("combobox", name="GPU", exact=True)).to_have_value("H100 80GB SXM5")
    expect(verdict(page)).to_contain_text("users at")
    expect(page.locator("#f-hardware-num_gpus")).to_have_value("2")
    visit.change(lambda: page.get_by_text("Train", exact=True).click())
    assert sizes(page) == before
