"""The pickers of models and cards find what people type, as the command line does."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.corpus import sampled

from .chrome import Visit
from .views import TRAIN

# What is typed into the model's field, and the model that Enter picks.
MODELS = {
    "mistral 7b": "Mistral 7B v0.1",
    "mistral": "Mistral 7B v0.1",
    "Llama-3.1-8B-Instruct": "Llama 3.1 8B",
    "meta-llama/Llama-3.1-8B-Instruct": "Llama 3.1 8B",
    "deepseek-r1-distill-qwen-7b": "Qwen2.5 7B",
    "phi3": "Phi-3 mini 4K",
    "8b": "Llama 3.1 8B",
    "7": "7B parameters",
}
# What is typed into the card's field, and the card that Enter picks.
CARDS = {
    "4090": "GeForce RTX 4090",
    "rtx4090": "GeForce RTX 4090",
    "NVIDIA A100-SXM4-80GB": "A100 80GB SXM4",
    "NVIDIA H100 80GB HBM3": "H100 80GB SXM5",
    "m3 max": "M3 Max 36GB",
}


def test_enter_picks_what_is_typed(visit: Visit) -> None:
    """The first of the list is the model, or the card, that the text means."""
    page = visit.open(TRAIN)
    for label, table in (("Model", MODELS), ("GPU", CARDS)):
        for typed, shown in table.items():
            field = page.get_by_role("combobox", name=label, exact=True)
            field.fill(typed)
            expect(page.get_by_role("option").first).to_contain_text(shown)
            expect(page.get_by_role("option").first).not_to_contain_text("looked up")
            field.press("Escape")


@pytest.mark.parametrize(("label", "part"), sampled([("Model", "model"), ("GPU", "card")], keep=1))
def test_text_that_means_nothing_is_told(visit: Visit, label: str, part: str) -> None:
    """Tab leaves the field, and the service's sentence stands below it."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    field = page.get_by_role("combobox", name=label, exact=True)
    field.fill("zzzz-nothing")
    field.press("Tab")
    expect(page.locator(f"#{part}-problem")).to_contain_text("zzzz-nothing")


@pytest.mark.parametrize("width", sampled([1440, 390], keep=1))
def test_cards_of_one_name_can_be_told_apart(visit: Visit, width: int) -> None:
    """No title in the list is cut, and the list stays within the window."""
    page = visit.open(TRAIN)
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_role("combobox", name="GPU", exact=True).fill("h100")
    names = page.locator("#card-list .option-name")
    expect(names.first).to_be_visible()
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
    assert names.evaluate_all(cut) == []
    box = page.locator("#card-list").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
