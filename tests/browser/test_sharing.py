"""What can be taken away: a link, a run file, a report, pictures, a command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
from playwright.sync_api import Download, Page, expect

from gpu_mem_calculator.cli.main import main

from .chrome import Visit
from .conftest import Visitor
from .reading import SERVE, TRAIN, field, sizes


def saved(page: Page, item: str) -> Download:
    """What an item of the menu saves."""
    page.get_by_role("button", name="Save").click()
    with page.expect_download() as waited:
        page.get_by_role("menuitem").filter(has_text=item).first.click()
    return waited.value


def test_link(visitor: Visitor) -> None:
    """The link that Share copies shows the same numbers to whoever opens it."""
    mine = visitor()
    page = mine.open(TRAIN)
    mine.change(lambda: field(page, "training.batch_size").get_by_role("slider").press("ArrowUp"))
    page.get_by_role("button", name="Share").click()
    expect(page.locator("#said")).to_have_text("The link is copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    theirs = visitor()
    opened = theirs.open(link.removeprefix(theirs.address))
    assert sizes(opened) == sizes(page)
    expect(field(opened, "training.batch_size").get_by_role("textbox")).to_have_value("6")


def test_bad_link(visit: Visit) -> None:
    """Every problem of a link is shown, and the page still works."""
    wrong = ["nonsense", "train?batch_size=4&colour.of=red", *["train?model.name=gpt2"] * 3]
    page = visit.open("/#" + "|".join(wrong), settled=False)
    for says in ("is not a view", "write section.key=value", "is not a section", "4 are the most"):
        expect(page.locator("#form .problems")).to_contain_text(says)
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Llama 3 8B")
    expect(page.locator(".verdict")).to_contain_text("fits")


def test_reload_keeps_the_state(visit: Visit) -> None:
    """A page opened again without a link begins where it was left."""
    page = visit.open(TRAIN)
    before = sizes(page)
    page.goto("about:blank")
    visit.open("/")
    assert sizes(page) == before


@pytest.mark.proof
def test_run_file(visit: Visit, service: str) -> None:
    """The saved run file gives the page's numbers when it is sent to the service."""
    page = visit.open(TRAIN)
    download = saved(page, "Run file")
    assert download.suggested_filename == "gpt2-pytorch-ddp-2x-h100-80gb-sxm.json"
    run = json.loads(Path(download.path()).read_text())
    result = httpx.post(f"{service}/api/replay", json=run, timeout=60).json()
    shown = sizes(page)
    assert result["allocated_bytes"] == shown["Allocated"]
    assert result["reserved_bytes"] == shown["Reserved"]
    assert result["device_bytes"] == shown["nvidia-smi"]


@pytest.mark.proof
def test_report(visit: Visit) -> None:
    """The report is one HTML file with the page's verdict, and asks for nothing else."""
    page = visit.open(TRAIN)
    download = saved(page, "Report")
    text = Path(download.path()).read_text()
    assert text.startswith("<!doctype html>")
    assert page.locator(".verdict-holder .says").inner_text() in text
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/", "")


def test_pictures(visit: Visit) -> None:
    """The picture is saved as SVG, which stands alone, and as PNG, twice as large."""
    page = visit.open(TRAIN)
    drawing = ElementTree.parse(saved(page, "Picture, SVG").path()).getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    assert drawing.get("width") == "1000"
    assert len(drawing.findall(".//{*}rect")) > 50
    image = Path(saved(page, "Picture, PNG").path()).read_bytes()
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(image[16:20], "big") == 2000
    assert len(image) > 20_000


def test_copied_command(visit: Visit, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the menu, run in a shell, gives the page's numbers."""
    page = visit.open(TRAIN)
    page.get_by_role("button", name="Save").click()
    page.get_by_role("menuitem", name="Copy the command").click()
    expect(page.locator("#said")).to_have_text("The command is copied.")
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert words[0] == "gpu-mem-calc"
    assert main([*words[1:], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["allocated_bytes"] == sizes(page)["Allocated"]


@pytest.mark.proof
def test_menu_by_keyboard(visit: Visit) -> None:
    """The menu opens, moves and closes with keys, and gives the focus back."""
    page = visit.open(SERVE)
    button = page.get_by_role("button", name="Save")
    button.press("ArrowDown")
    expect(page.get_by_role("menuitem").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("menuitem").last).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_be_hidden()
    expect(button).to_be_focused()


@pytest.mark.proof
def test_link_keeps_the_open_set_up(visit: Visit) -> None:
    """A link of two set-ups opens the one that was open."""
    other = TRAIN.removeprefix("/#").replace("batch_size=4", "batch_size=8")
    page = visit.open(f"{TRAIN}|{other}|open=2")
    expect(field(page, "training.batch_size").get_by_role("textbox")).to_have_value("8")
    page.locator(".compare .tab").first.click()
    page.wait_for_function("() => !location.hash.includes('open=')")
    expect(field(page, "training.batch_size").get_by_role("textbox")).to_have_value("4")


@pytest.mark.proof
def test_deepspeed_config(visit: Visit) -> None:
    """A DeepSpeed set-up is saved as DeepSpeed's own file; others do not offer it."""
    page = visit.open(TRAIN)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("menuitem", name="DeepSpeed")).to_be_hidden()
    page.keyboard.press("Escape")
    visit.change(lambda: page.locator("#f-engine-type").select_option('"deepspeed"'))
    page.get_by_role("button", name="Save").click()
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name="DeepSpeed").click()
    assert "zero_optimization" in json.loads(waiting.value.path().read_text())
