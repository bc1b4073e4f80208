"""Recipes: what is trained is one click, from the page as it opens."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .chrome import Visit
from .reading import TRAIN, field, verdict

SHARDED = TRAIN.replace("pytorch_ddp", "fsdp")
MOST_CLICKS = 3  # to a QLoRA of an 8B model on one 4090; typing a name or a number is one


def recipe(page: Page, title: str) -> None:
    """Choose what is trained."""
    page.get_by_role("radio", name=title, exact=True).check()


@pytest.mark.proof
def test_qlora_on_one_card(visit: Visit) -> None:
    """An 8B QLoRA on one 4090 takes three clicks from the page as it opens, and fits."""
    page = visit.open("/")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Llama 3 8B")

    def card() -> None:
        page.get_by_role("combobox", name="GPU").fill("4090")
        page.keyboard.press("Enter")

    count = field(page, "hardware.num_gpus").get_by_role("textbox")
    clicks = [card, lambda: count.fill("1"), lambda: recipe(page, "QLoRA")]
    for click in clicks:
        visit.change(click)
    assert len(clicks) <= MOST_CLICKS
    expect(page.get_by_role("combobox", name="GPU")).to_have_value("GeForce RTX 4090")
    expect(verdict(page)).to_have_class("verdict fits")
    expect(page.locator(".recipe .moved")).to_have_text(
        "QLoRA is not modelled with PyTorch FSDP, so the framework is now PyTorch DDP."
    )
    said = page.locator("section:has(#h-remarks)")
    expect(said).to_contain_text("sequence of 4,096 tokens")
    expect(said).to_contain_text("As transformers.Trainer with PEFT")
    for tool in ("TRL", "LLaMA-Factory", "Axolotl"):
        expect(said).to_contain_text(tool)


def test_recipes_by_keyboard(visit: Visit) -> None:
    """The arrow keys walk over the recipes; each leaves the settings of the one before."""
    page = visit.open(SHARDED)
    page.get_by_role("radio", name="All weights").focus()
    visit.change(lambda: page.keyboard.press("ArrowRight"))
    expect(page.get_by_role("radio", name="LoRA", exact=True)).to_be_focused()
    assert "training.lora.r=16" in page.evaluate("location.hash")
    visit.change(lambda: page.keyboard.press("ArrowRight"))
    expect(page.locator("#f-engine-type")).to_have_value('"pytorch_ddp"')
    visit.change(lambda: page.keyboard.press("ArrowRight"))
    expect(page.get_by_role("radio", name="All weights")).to_be_checked()
    expect(page.locator(".recipe .moved")).to_have_text("The framework is PyTorch FSDP again.")
    page.wait_for_function("() => !location.hash.includes('lora')")


@pytest.mark.proof
def test_recipe_keeps_the_rank_and_says_what_is_changed(visit: Visit) -> None:
    """A rank that was typed stays; a setting that differs from the recipe is named."""
    page = visit.open(SHARDED)
    visit.change(lambda: recipe(page, "LoRA"))
    visit.change(lambda: field(page, "training.lora.r").get_by_role("textbox").fill("64"))
    visit.change(lambda: recipe(page, "QLoRA"))
    expect(field(page, "training.lora.r").get_by_role("textbox")).to_have_value("64")
    visit.change(lambda: page.locator("#f-training-optimizer").select_option('"sgd"'))
    expect(page.locator("#recipe-hint")).to_contain_text(
        "With other settings than usual: optimizer"
    )
    visit.change(page.get_by_role("button", name="Undo").click)
    expect(page.locator("#recipe-hint")).to_contain_text("nf4")


@pytest.mark.proof
def test_recipe_of_megatron_changes_the_engine(visit: Visit) -> None:
    """An engine without adapters is replaced, with its own options."""
    page = visit.open(
        "/#train?model.name=qwen3-0.6b&hardware.gpu=h100-80gb-sxm&hardware.num_gpus=8"
        "&engine.type=megatron_lm&parallelism.tensor_parallel_size=2"
        "&parallelism.data_parallel_size=4&training.seq_len=512"
    )
    for title in ("LoRA", "QLoRA"):
        visit.change(lambda title=title: recipe(page, title))
        expect(page.locator(".notice")).to_be_hidden()
        page.wait_for_function("() => location.hash.includes('engine.type=pytorch_ddp')")
        assert "parallelism" not in page.evaluate("location.hash")
        visit.change(page.get_by_role("button", name="Undo").click)
        page.wait_for_function("() => location.hash.includes('engine.type=megatron_lm')")


@pytest.mark.proof
def test_methods(visit: Visit) -> None:
    """DPO has a reference model and pairs, GRPO generates; SFT brings length and framework back."""
    page = visit.open(SHARDED.replace("training.seq_len=512", "training.seq_len=256"))
    visit.change(lambda: recipe(page, "DPO"))
    expect(field(page, "training.batch_size").get_by_role("textbox")).to_have_value("8")
    expect(page.locator(".card")).to_contain_text("reference model")
    expect(page.locator(".method .moved")).to_contain_text("DPO is not modelled with")
    visit.change(lambda: recipe(page, "GRPO"))
    expect(page.locator(".plot")).to_contain_text("generation")
    expect(field(page, "training.seq_len").get_by_role("textbox")).to_have_attribute(
        "placeholder", "1024"
    )
    visit.change(lambda: recipe(page, "LoRA"))
    expect(page.get_by_role("radio", name="GRPO")).to_be_checked()
    visit.change(lambda: recipe(page, "SFT"))
    expect(page.locator(".method .moved")).to_have_text("The framework is PyTorch FSDP again.")
    expect(page.get_by_role("radio", name="LoRA", exact=True)).to_be_checked()
    expect(page.locator(".notice")).to_be_hidden()
    page.wait_for_function("() => !location.hash.includes('generation')")
