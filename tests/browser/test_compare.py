"""Set-ups side by side: two to four, what differs, and one less again."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .chrome import Visit
from .reading import SERVE, TRAIN, field

HERE = TRAIN.removeprefix("/#")
FOUR = "|".join(HERE.replace("batch_size=4", f"batch_size={n}") for n in (1, 2, 4, 8))


def test_two(visit: Visit) -> None:
    """A copy is made to be changed; what then differs is marked, and nothing else is listed."""
    page = visit.open(TRAIN)
    page.get_by_role("button", name="Add to compare").click()
    cards = page.locator(".compare article")
    expect(cards).to_have_count(2)
    expect(cards.nth(1)).to_contain_text("The set-ups are equal")
    slider = field(page, "training.batch_size").get_by_role("slider")
    visit.change(lambda: slider.press("ArrowRight"))
    rows = cards.nth(1).locator(".differs > div")
    expect(rows).to_have_count(1)
    expect(rows).to_have_class("own")
    expect(rows).to_contain_text("6")
    expect(cards.nth(0).locator(".differs")).to_contain_text("4")
    sizes = [one.locator(".four dd").first.inner_text() for one in cards.all()]
    assert sizes[0] != sizes[1]


@pytest.mark.proof
def test_four(visit: Visit) -> None:
    """Four set-ups have their verdicts, numbers and pictures on one scale; a fifth is refused."""
    page = visit.open(f"/#{FOUR}")
    cards = page.locator(".compare article")
    expect(cards).to_have_count(4)
    expect(page.locator(".compare .brief.fits")).to_have_count(4)
    expect(page.get_by_role("button", name="Add to compare")).to_be_disabled()
    expect(page.locator(".compare .four")).not_to_contain_text(["…"] * 4)
    heights = page.locator(".compare .mini").evaluate_all(
        "all => all.map(one => Math.min(...[...one.querySelectorAll('rect')]"
        ".map(rect => Number(rect.getAttribute('y')))))"
    )
    assert heights == sorted(heights, reverse=True)  # y counts from the top
    assert len(set(heights)) == 4


@pytest.mark.proof
def test_remove_and_turn(visit: Visit) -> None:
    """A set-up is removed with its button, another is turned to, and the form shows that one."""
    page = visit.open(f"/#{FOUR}")
    page.get_by_role("button", name="Remove set-up 2").click()
    cards = page.locator(".compare article")
    expect(cards).to_have_count(3)
    batch = field(page, "training.batch_size").get_by_role("textbox")
    expect(batch).to_have_value("1")
    cards.nth(2).locator(".tab").click()
    expect(batch).to_have_value("8")
    expect(cards.nth(2).locator(".tab")).to_have_attribute("aria-pressed", "true")
    page.locator("#result").focus()
    page.keyboard.press("Control+z")
    expect(cards).to_have_count(4)


def test_training_beside_serving(visit: Visit) -> None:
    """A run and a server stand side by side, each with its own numbers."""
    page = visit.open(f"{TRAIN}|{SERVE.removeprefix('/#')}")
    cards = page.locator(".compare article")
    expect(cards.nth(0).locator(".four")).to_contain_text("nvidia-smi")
    expect(cards.nth(1).locator(".four")).to_contain_text("KV cache")
    expect(cards.nth(1).locator(".differs .own")).to_have_text(
        ["modelqwen3-0.6b", "GPUsdefault", "enginevLLM"]
    )


def test_titles_and_totals_tell_set_ups_apart(visit: Visit) -> None:
    """What is trained, on what; a default is the value that it is; the least is marked."""
    lora = "&training.lora.r=8&training.optimizer=adamw&engine.type=pytorch_ddp"
    runs = (HERE, f"{HERE}{lora}", f"{HERE}{lora}&training.quantization=nf4")
    page = visit.open(f"/#{'|'.join(runs)}")
    cards = page.locator(".compare article")
    expect(cards.locator(".tab-name")).to_have_text(["1: All weights", "2: LoRA", "3: QLoRA"])
    expect(cards.nth(0)).not_to_contain_text("optimizer AdamW")
    rows = cards.nth(0).locator(".differs > div")
    expect(rows.filter(has_text="LoRA rank")).to_have_text("LoRA rank–")
    expect(rows.filter(has_text="AdamW")).to_have_count(0)
    totals = [float(one.inner_text().split()[1]) for one in cards.locator(".brief .needs").all()]
    expect(cards.nth(1).locator(".apart")).to_contain_text(
        f"{totals[0] - totals[1]:.1f} GiB less than set-up 1"
    )
    least = totals.index(min(totals))
    expect(page.locator(".compare .apart").filter(has_text="least")).to_have_count(1)
    expect(cards.nth(least).locator(".apart")).to_contain_text("least")
    engines = (HERE, HERE.replace("pytorch_ddp", "fsdp").replace("num_gpus=2", "num_gpus=4"))
    page = visit.open(f"/#{'|'.join(engines)}")
    expect(page.locator(".compare .tab-name")).to_have_text(["1: PyTorch DDP", "2: PyTorch FSDP"])
    gpus = (HERE, HERE.replace("num_gpus=2", "num_gpus=1"))
    page = visit.open(f"/#{'|'.join(gpus)}")
    expect(page.locator(".compare .tab-name")).to_have_text(["1: 2 GPUs", "2: 1 GPU"])
