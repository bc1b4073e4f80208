"""What if: what a change saves is known before the click, and comes true."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .chrome import Visit
from .reading import SERVE, TRAIN, field, gib, peak, sizes, verdict
from .test_form import pasted

SMALL_CARD = "/#train?model.name=gpt2&hardware.gpu=rtx-4090&hardware.num_gpus=1"
NO_LENGTH = "python train.py --model_name_or_path gpt2 --output_dir out --bf16 true"


@pytest.mark.proof
def test_chip_saves_what_it_says(visit: Visit) -> None:
    """A chip says what it saves; a click changes the ledger by as much, and undo restores it."""
    page = visit.open(TRAIN)
    before, numbers = peak(page), sizes(page)
    chip = page.locator(".chip", has_text="full recompute")
    said = chip.locator(".chip-gain").inner_text()
    assert said.startswith("−")
    visit.change(chip.click)
    assert abs(before - peak(page) - gib(said)) < 0.05  # by the ledger, before blocks are rounded
    assert before - peak(page) > 0.5
    visit.change(page.get_by_role("button", name="Undo").click)
    assert sizes(page) == numbers


def test_chip_that_makes_it_fit(visit: Visit) -> None:
    """Where a run does not fit, a chip says which change makes it fit; then it does."""
    page = visit.open(
        "/#train?model.name=llama3-8b&hardware.gpu=rtx-4090&hardware.num_gpus=8"
        "&engine.type=fsdp&training.batch_size=1&training.seq_len=2048"
    )
    expect(verdict(page)).to_have_class("verdict fails")
    chip = page.locator(".chip.helps").first
    expect(chip).to_contain_text("then fits")
    visit.change(chip.click)
    expect(verdict(page)).not_to_have_class("verdict fails")


def test_chip_of_a_server(visit: Visit) -> None:
    """A server's chip says how many tokens its cache then holds; a click gives it as many."""
    page = visit.open(SERVE)
    chip = page.locator(".chip", has_text="KV cache in fp8")
    tokens = gib(chip.locator(".chip-gain").inner_text())
    visit.change(chip.click)
    assert gib(verdict(page).locator(".says").inner_text()) == tokens
    expect(field(page, "inference.kv_cache_dtype")).to_have_class("field choice set")


@pytest.mark.proof
def test_more_gpus_for_a_server(visit: Visit) -> None:
    """A model that no single card holds: the chip names the GPUs that do, and no dead end."""
    page = visit.open("/#serve?model.name=deepseek-v3&hardware.gpu=h200-141gb-sxm")
    expect(verdict(page)).to_have_class("verdict fails")
    expect(page.locator(".chip.short")).to_have_count(0)
    chip = page.locator(".chip.helps", has_text="8 GPUs").first
    visit.change(chip.click)
    expect(verdict(page)).to_have_class("verdict fits")


@pytest.mark.proof
def test_pairs_where_nothing_single_fits(visit: Visit) -> None:
    """A run that no single change of the same training makes fit is offered a pair that does."""
    page = visit.open(
        "/#train?model.name=llama2-13b&hardware.gpu=rtx-4090&hardware.num_gpus=8"
        "&engine.type=fsdp&training.batch_size=1&training.seq_len=4096"
    )
    expect(verdict(page)).to_have_class("verdict fails")
    chip = page.locator(".chip.helps", has_text=" + ").first
    expect(chip).to_contain_text("then fits")
    visit.change(chip.click)
    expect(verdict(page)).not_to_have_class("verdict fails")


def test_what_a_command_leaves_open_is_settled_in_the_form(visit: Visit) -> None:
    """Until then no chip is green or says that it then fits, and the page names its own field."""
    visit.provoked = {422}
    page = visit.open(SMALL_CARD)
    visit.change(lambda: pasted(page, NO_LENGTH))
    page.locator("#paste-close").click()
    expect(verdict(page)).to_have_class("verdict unsure")
    expect(verdict(page)).to_contain_text("fill in “sequence length” in the form")
    expect(verdict(page)).not_to_contain_text("--set")
    expect(page.locator(".chip").first).to_be_visible()
    expect(page.locator(".chip.helps")).to_have_count(0)
    assert "then fits" not in page.locator(".what-if").inner_text()
    length = field(page, "training.seq_len").get_by_role("textbox")
    visit.change(lambda: length.fill("512"))
    expect(verdict(page)).to_have_class("verdict fits")
    page.get_by_role("button", name="Undo").click()
    expect(verdict(page)).to_have_class("verdict unsure")
