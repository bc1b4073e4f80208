"""What is pasted, dropped and named by a command; what was read stays with the run."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from .chrome import Visit
from .conftest import Visitor
from .reading import SERVE, TRAIN, field, verdict
from .test_form import pasted

LAUNCH = "accelerate launch --config_file conf/a.yaml sft.py --model_name_or_path gpt2"
ACCELERATE = "num_processes: 4\ndistributed_type: MULTI_GPU"
ZERO = '{"zero_optimization": {"stage": 2}}'
GRPO = "trl grpo --model_name_or_path Qwen/Qwen3-0.6B --use_vllm --vllm_mode colocate"
DROP = """([place, files]) => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name));
  const about = { dataTransfer: data, bubbles: true, cancelable: true };
  document.querySelector(place).dispatchEvent(new DragEvent("dragover", about));
  document.querySelector(place).dispatchEvent(new DragEvent("drop", about));
}"""
PASTE = """([place, text]) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  const about = { clipboardData, bubbles: true, cancelable: true };
  document.querySelector(place).dispatchEvent(new ClipboardEvent("paste", about));
}"""
GREYED = "() => document.documentElement.dataset.choices"


def drop(page: Page, files: dict[str, str], place: str = "#result") -> None:
    """Drop files on a part of the page."""
    page.evaluate(DROP, [place, list(files.items())])


def test_files_that_a_command_names(visit: Visit) -> None:
    """Each has a box of its own, with its name; a file that is dropped goes into its box."""
    visit.provoked = {422}
    page = visit.open(TRAIN)
    pasted(page, f"{LAUNCH} --deepspeed ds.json")
    first = page.get_by_role("textbox", name="The text of conf/a.yaml")
    expect(first).to_be_focused()
    expect(page.locator("#paste-problems p")).to_have_count(0)
    first.fill(ACCELERATE)
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_role("textbox", name="The text of ds.json")).to_be_focused()
    visit.change(lambda: drop(page, {"ds.json": ZERO}))
    expect(page.locator("#paste-notes")).to_contain_text("Read as trl.SFTTrainer")
    page.locator("#paste-close").click()
    expect(field(page, "hardware.num_gpus").get_by_role("textbox")).to_have_value("4")
    expect(field(page, "engine.zero_stage").get_by_role("combobox")).to_have_value("2")


@pytest.mark.proof
def test_files_are_dropped_anywhere(visit: Visit) -> None:
    """A script with the files that it names, all at once, on the picture."""
    page = visit.open(TRAIN)
    script = f"#!/bin/bash\n{LAUNCH}\n"
    visit.change(lambda: drop(page, {"a.yaml": ACCELERATE, "run.sh": script}))
    expect(page.locator("#paste-notes")).to_contain_text("Read as trl.SFTTrainer")
    page.locator("#paste-close").click()
    expect(page.locator("#form .read")).to_contain_text("Read from trl.SFTTrainer")
    visit.change(lambda: drop(page, {"run.yaml": "model: {name: gpt2}"}, "header.site"))
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#form .read")).to_have_text("")


def test_a_text_is_pasted_anywhere(visit: Visit) -> None:
    """Outside a field it opens the dialog; in a field it is the field's."""
    page = visit.open(TRAIN)
    page.evaluate(PASTE, ["#result", "vllm serve Qwen/Qwen3-32B"])
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("#paste-text")).to_have_value("vllm serve Qwen/Qwen3-32B")
    page.keyboard.press("Escape")
    page.evaluate(PASTE, ["#form input", "gpt2"])
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_log_is_dropped(visit: Visit) -> None:
    """It is diagnosed in the same dialog."""
    page = visit.open(SERVE)
    drop(page, {"run.log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."})
    expect(page.locator(".diagnosis .cause")).to_be_visible()
    expect(page.locator(".diagnosis")).to_contain_text("line 1: torch ran out of memory")
    expect(page.get_by_role("button", name="Compare with the form")).to_be_visible()


def test_a_log_is_not_compared_with_the_example(visit: Visit) -> None:
    """What the page opens with is nobody's run."""
    page = visit.open("/")
    drop(page, {"run.log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."})
    expect(page.locator(".diagnosis .cause")).to_be_visible()
    expect(page.get_by_role("button", name="Compare with the form")).to_have_count(0)


def test_a_log_with_its_command_is_counted_on_the_forms_card(visit: Visit) -> None:
    """Where the text says none."""
    page = visit.open(SERVE)
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    drop(page, {"run.log": f"vllm serve Qwen/Qwen3-32B\n{oom}"})
    expect(page.locator(".diagnosis")).to_contain_text("The card is not known")
    page.get_by_role("button", name="Count it on the form").click()
    expect(page.locator(".diagnosis")).to_contain_text("by an estimate: Qwen3 32B")
    expect(page.locator(".diagnosis li").first).to_contain_text(". It then fits, by an estimate.")
    expect(page.get_by_role("button", name="Count it on the form")).to_have_count(0)


@pytest.mark.proof
def test_a_file_that_is_not_named(visit: Visit) -> None:
    """A script that is not there is offered a box, and the run is read without it."""
    page = visit.open(TRAIN)
    visit.change(lambda: pasted(page, "python train.py --model_name_or_path gpt2"))
    expect(page.locator("#paste-notes")).to_contain_text("train.py was not read")
    expect(page.get_by_role("textbox", name="The text of train.py")).to_be_visible()


@pytest.mark.proof
def test_what_was_read_stays(visitor: Visitor) -> None:
    """In the form, in Assumptions and in the link; the form shows the run as it is resolved."""
    mine = visitor()
    page = mine.open(TRAIN)
    mine.change(lambda: pasted(page, GRPO))
    page.locator("#paste-close").click()
    theirs = visitor()
    opened = theirs.open(page.url.removeprefix(theirs.address))
    for one in (page, opened):
        expect(one.locator("#form .read")).to_contain_text(f": {GRPO}. Assumptions")
        remarks = one.locator(".part-remarks")
        expect(remarks).to_contain_text("prompts of 512 tokens")
        expect(remarks).to_contain_text("the number of GPUs is the form's, 2")
        length = field(one, "training.seq_len").get_by_role("textbox")
        expect(length).to_have_attribute("placeholder", "1024")
        expect(one.get_by_role("radio", name="GRPO")).to_be_checked()
    theirs.change(lambda: opened.get_by_role("radio", name="Serve").check())
    expect(opened.locator("#form .read")).to_have_text("")
    expect(opened.locator(".part-remarks")).not_to_contain_text("prompts of 512 tokens")


def test_the_form_shows_the_run(visit: Visit) -> None:
    """A server on eight GPUs has eight ranks, which nobody typed."""
    page = visit.open(f"{SERVE}&hardware.num_gpus=8")
    ranks = field(page, "inference.tensor_parallel_size")
    expect(ranks.locator("input").first).to_have_attribute("placeholder", "8")


def test_choices_that_would_be_refused_are_grey(visit: Visit) -> None:
    """With the reason; none that is left is refused."""
    page = visit.open(TRAIN)
    page.locator("#form .group").evaluate_all("all => all.forEach(one => one.open = true)")
    options = field(page, "training.quantization").locator("option")
    grey = options.filter(has_text=re.compile("^nf4"))
    expect(grey).to_have_attribute("disabled", "")
    expect(grey).to_have_text("nf4: quantized weights take no gradient; add training.lora")
    page.wait_for_function(GREYED)
    for choice in ("bf16 pure", "fp32"):
        visit.change(lambda c=choice: page.locator("#f-training-precision").select_option(label=c))
        expect(page.locator(".notice")).to_be_hidden()
    visit.change(lambda: page.get_by_role("radio", name="QLoRA").check())
    expect(grey).not_to_have_attribute("disabled", "")


def test_the_old_verdict_dims_at_once(visit: Visit) -> None:
    """Until the next answer, when the model, the card, the GPUs or the view is another one."""
    page = visit.open(TRAIN)
    asked: list[Route] = []
    page.route("**/api/look*", lambda one: asked.append(one))
    page.get_by_role("button", name="One more").click()
    expect(page.locator("#result")).to_have_class(re.compile(r"\bold\b"))
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.verdict-holder .verdict')).filter")
        == "grayscale(1)"
    )
    expect(page.locator(".verdict-holder")).to_have_attribute("aria-busy", "true")
    for one in asked:
        one.continue_()
    page.unroute("**/api/look*")
    expect(page.locator("#result")).not_to_have_class(re.compile(r"\bold\b"))


def test_nothing_is_waited_for_where_the_bounds_decide(visit: Visit) -> None:
    """The range is wider than any measured run: within the card it fits, beyond it does not."""
    page = visit.page
    waits: list[Route] = []
    page.route("**/api/look*replay=true*", lambda one: waits.append(one))
    for more, says in (("", "✓ fits"), ("&training.batch_size=4096", "✗ does not fit")):
        visit.open(
            f"{TRAIN.replace('&training.batch_size=4', more or '&training.batch_size=1')}",
            settled=False,
        )
        expect(verdict(page).locator(".says")).to_contain_text(says)
    for one in waits:
        one.continue_()
