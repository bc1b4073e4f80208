"""The form: sentences at their fields, what is pasted, options that come and go."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import SMALL_LLAMA

from .chrome import Visit
from .conftest import Visitor
from .reading import TRAIN, field, sizes, verdict

RUN = """\
model: {name: qwen3-0.6b}
training: {batch_size: 3, seq_len: 1024, optimizer: sgd}
engine: {type: deepspeed, zero_stage: 2}
hardware: {gpu: a100-80gb-sxm, num_gpus: 4}
"""


def pasted(page: Page, text: str) -> None:
    """Use a text in the dialog."""
    page.get_by_role("button", name="Paste a command").click()
    page.locator("#paste-text").fill(text)
    page.get_by_role("button", name="Use it").click()


def test_invalid_value(visit: Visit) -> None:
    """A value that cannot be is told at its field; the last result stays until it is mended."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    before = sizes(page)
    box = field(page, "training.batch_size").get_by_role("textbox")
    box.fill("0")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(field(page, "training.batch_size").locator(".problem")).to_contain_text("batch_size=0")
    expect(page.locator(".notice")).to_contain_text("invalid set-up")
    assert sizes(page) == before
    visit.change(lambda: box.fill("4"))
    expect(box).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator(".notice")).to_be_hidden()
    assert sizes(page) == before


def test_word_for_a_number(visit: Visit) -> None:
    """A word where a number belongs is told as a sentence at the field."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    field(page, "training.seq_len").get_by_role("textbox").fill("long")
    expect(field(page, "training.seq_len").locator(".problem")).to_contain_text("long")


@pytest.mark.proof
def test_paste_config(visit: Visit) -> None:
    """A pasted config.json becomes the model, and every other setting stays."""
    page = visit.open(TRAIN)
    visit.change(lambda: pasted(page, json.dumps(SMALL_LLAMA)))
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#model-hint")).to_contain_text("4 layers, hidden size 256")
    expect(field(page, "training.batch_size").get_by_role("textbox")).to_have_value("4")


@pytest.mark.proof
def test_paste_run_file(visit: Visit) -> None:
    """A pasted run file, here YAML, changes every setting that it has."""
    page = visit.open(TRAIN)
    visit.change(lambda: pasted(page, RUN))
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Qwen3 0.6B")
    expect(page.get_by_role("combobox", name="GPU", exact=True)).to_have_value("A100 80GB SXM4")
    expect(field(page, "training.batch_size").get_by_role("textbox")).to_have_value("3")
    expect(field(page, "engine.zero_stage").get_by_role("combobox")).to_have_value("2")
    expect(field(page, "training.optimizer").locator("option:checked")).to_have_text("SGD")


@pytest.mark.proof
def test_paste_deepspeed(visit: Visit) -> None:
    """DeepSpeed's JSON, which names no model, keeps the model and the card."""
    page = visit.open(TRAIN)
    config = {"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 2}}
    visit.change(lambda: pasted(page, json.dumps(config)))
    expect(page.get_by_role("combobox", name="Model")).to_have_value("GPT-2 124M")
    expect(page.locator("#f-engine-type")).to_have_value('"deepspeed"')
    expect(field(page, "training.batch_size").get_by_role("textbox")).to_have_value("3")
    expect(field(page, "hardware.num_gpus").get_by_role("textbox")).to_have_value("2")


@pytest.mark.proof
def test_paste_the_hubs_page(visit: Visit) -> None:
    """The address of a model's page is the model."""
    page = visit.open(TRAIN)
    visit.change(lambda: pasted(page, "https://huggingface.co/Qwen/Qwen3-0.6B"))
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Qwen3 0.6B")


def test_paste_a_command(visit: Visit) -> None:
    """A command as it would be started sets the run; the dialog lists what was assumed."""
    page = visit.open(TRAIN)
    words = "accelerate launch --num_processes 2 sft.py --model_name_or_path Qwen/Qwen3-0.6B"
    visit.change(lambda: pasted(page, f"{words} \\\n  --per_device_train_batch_size 3"))
    expect(page.locator("#paste-notes")).to_contain_text("Read as trl.SFTTrainer")
    page.locator("#paste-close").click()
    expect(field(page, "training.batch_size").get_by_role("textbox")).to_have_value("3")
    expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.proof
def test_paste_a_log(visit: Visit) -> None:
    """Why it died stands in the dialog; the form's run can be set beside it."""
    page = visit.open(TRAIN)
    pasted(
        page,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total"
        " capacity of 79.15 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this"
        " process has 78.10 GiB memory in use. Of the allocated memory 76.00 GiB is allocated by"
        " PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated.",
    )
    notes = page.locator("#paste-notes")
    expect(notes).to_contain_text("possible: the card was full")
    notes.get_by_role("button", name="Compare with the form’s run").click()
    expect(notes).to_contain_text("part by part")
    expect(notes.get_by_role("button")).to_have_count(0)


@pytest.mark.proof
def test_paste_several_commands(visit: Visit) -> None:
    """Each that can be read is a set-up of its own; of the others the reason stands there."""
    page = visit.open(TRAIN)
    serve = "vllm serve Qwen/Qwen3-0.6B --max-model-len 4096"
    text = f"{serve}\n{serve.replace('0.6B', '1.7B')}\nvllm serve --no-such-option 1"
    visit.change(lambda: pasted(page, text))
    notes = page.locator("#paste-notes")
    expect(notes).to_contain_text(
        "3 commands; the first 2 that can be read stand side by side now."
    )
    expect(notes).to_contain_text("no-such-option")
    page.locator("#paste-close").click()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Qwen3 0.6B")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("combobox", name="Model")).not_to_have_value("Qwen3 0.6B")


@pytest.mark.proof
def test_of_more_commands_than_set_ups_one_can_be_chosen(visit: Visit) -> None:
    """Four stand side by side; the fifth has a button."""
    page = visit.open(TRAIN)
    lengths = (1024, 2048, 3072, 4096, 5120)
    text = "\n".join(f"vllm serve Qwen/Qwen3-0.6B --max-model-len {one}" for one in lengths)
    visit.change(lambda: pasted(page, text))
    visit.change(lambda: page.get_by_role("button", name="Show this one").click())
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(field(page, "inference.max_seq_len").get_by_role("textbox")).to_have_value("5120")


def test_what_is_not_modelled_of_a_command_stays(visitor: Visitor) -> None:
    """The verdict is open, also for whoever opens the link."""
    mine = visitor()
    page = mine.open(TRAIN)
    words = "trl sft --model_name_or_path HuggingFaceTB/SmolLM2-135M --fp16_full_eval true"
    mine.change(lambda: pasted(page, words))
    page.locator("#paste-close").click()
    opened = visitor()
    theirs = opened.open(page.url.removeprefix(opened.address))
    for one in (page, theirs):
        expect(one.locator(".verdict .says")).to_have_text("? cannot tell")
        expect(one.locator(".verdict")).to_contain_text("--fp16_full_eval=true")


def test_paste_something_else(visit: Visit) -> None:
    """A text that is neither is told in the dialog, which stays open with it."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    pasted(page, "never gonna: [give")
    expect(page.locator("#paste-problems p")).not_to_be_empty()
    expect(page.locator("#paste-text")).to_have_value("never gonna: [give")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.proof
def test_another_framework(visit: Visit) -> None:
    """With another framework, the old one's options are left behind, and nothing is refused."""
    page = visit.open(
        "/#train?model.name=gpt2&hardware.num_gpus=4&engine.type=deepspeed"
        "&engine.zero_stage=3&engine.offload_optimizer=cpu"
    )
    choice = field(page, "engine.type").get_by_role("combobox")
    visit.change(lambda: choice.select_option(label="PyTorch FSDP"))
    expect(field(page, "engine.zero_stage")).to_have_count(0)
    expect(field(page, "engine.sharding_strategy")).to_be_visible()
    page.wait_for_function("() => !location.hash.includes('zero_stage')")
    assert "offload" not in page.url
    expect(page.locator(".notice")).to_be_hidden()


def test_start_over(visit: Visit) -> None:
    """Start over brings the example back, as one step that can be taken back."""
    page = visit.open(TRAIN)
    visit.change(page.get_by_role("button", name="Start over").click)
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Llama 3 8B")
    visit.change(page.get_by_role("button", name="Undo").click)
    expect(page.get_by_role("combobox", name="Model")).to_have_value("GPT-2 124M")


def test_reset_of_a_field(visit: Visit) -> None:
    """The cross beside a field takes its value back, and its default shows."""
    page = visit.open(f"{TRAIN}&training.optimizer=sgd")
    optimizer = field(page, "training.optimizer")
    expect(optimizer).to_have_class("field choice set")
    visit.change(optimizer.get_by_role("button", name="Reset").click)
    expect(optimizer.locator("option:checked")).to_contain_text("(default)")


def test_hub_is_off(visit: Visit) -> None:
    """A model of the hub, which this service does not ask, is told at the model's field."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    model = page.get_by_role("combobox", name="Model")
    model.fill("somebody/a-model-of-their-own")
    model.press("Enter")
    expect(page.locator("#model-problem")).to_contain_text("somebody/a-model-of-their-own")
    expect(model).to_have_attribute("aria-invalid", "true")
    expect(verdict(page)).to_be_hidden()


def test_sizes_in_words(visit: Visit) -> None:
    """8k in a field of tokens is 8,192 of them, and a bare size such as 3B is a model."""
    page = visit.open(
        f"{TRAIN.replace('gpt2', 'qwen3-0.6b')}&training.activation_checkpointing=full"
    )
    length = field(page, "training.seq_len").get_by_role("textbox")
    visit.change(lambda: length.fill("8k"))
    page.wait_for_function("() => location.hash.includes('seq_len=8192')")
    model = page.get_by_role("combobox", name="Model")
    model.fill("3B")
    expect(page.get_by_role("option").first).to_contain_text("3")
