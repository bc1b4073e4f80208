"""Every view at three widths, light and dark, as pictures to look at.

python -m tests.browser.screenshots FOLDER [VIEW …]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from gpu_mem_calculator.web.settings import ServiceSettings
from tests.services import running

from .chrome import Visit, launched
from .reading import field
from .views import READY, VIEWS

LARGE = (
    "#train?model.name=llama3-8b&hardware.gpu=h100-80gb-sxm&hardware.num_gpus=8"
    "&engine.type=fsdp&training.batch_size=1&training.seq_len=4096"
)
SMALL = LARGE.replace("h100-80gb-sxm", "rtx-4090")
SERVER = "#serve?model.name=llama3-8b&hardware.gpu=h100-80gb-sxm&inference.engine=vllm"
FOUR = "|".join(
    f"{LARGE[1:]}{one}"
    for one in ("", "&training.lora.r=16", "&training.activation_checkpointing=full")
)


def explained(page: Page) -> None:
    """The explanation of activations."""
    page.locator(".card .row", has_text="activations").first.click()
    page.locator(".explain .entry").first.wait_for()


def wrong(page: Page) -> None:
    """A value that cannot be."""
    field(page, "training.batch_size").get_by_role("textbox").fill("0")
    page.locator(".notice:visible").wait_for()


def unfolded(page: Page) -> None:
    """Everything that can be unfolded."""
    page.locator(".fold, #form .group").evaluate_all("all => all.forEach(one => one.open = true)")
    page.locator(".part-instants table").wait_for()


def operation(page: Page) -> None:
    """An address, opened and tried."""
    page.locator("#post-api-calculate").get_by_role("button", name="Try it").click()
    page.locator(".answer .worked").wait_for()


def run(page: Page) -> None:
    """The first run, opened."""
    page.locator("#runs .opens").first.click()


def menu(page: Page) -> None:
    """The menu of what can be saved, and the list of models."""
    page.get_by_role("button", name="Save").click()


def models(page: Page) -> None:
    """The list of models for a few letters."""
    page.get_by_role("combobox", name="Model", exact=True).fill("llama 3")


def pasting(page: Page) -> None:
    """The dialog that takes a config.json."""
    page.get_by_role("button", name="Paste").click()


# name -> where it is, what is done there, whether the whole page is taken or what is in sight
SHOTS: dict[str, tuple[str, Callable[[Page], None] | None, bool]] = {
    "train": (f"/{LARGE}", None, True),
    "short": (f"/{SMALL}", None, True),
    "unfolded": (f"/{LARGE}", unfolded, True),
    "serve": (f"/{SERVER}", None, True),
    "two": (f"/{LARGE}|{SERVER[1:]}", None, True),
    "four": (f"/#{FOUR}|{SMALL[1:]}", None, True),
    "explain": (f"/{LARGE}", explained, False),
    "problem": (f"/{LARGE}", wrong, False),
    "menu": (f"/{LARGE}", menu, False),
    "models": (f"/{LARGE}", models, False),
    "paste": (f"/{LARGE}", pasting, False),
    "plan": (VIEWS["plan"], None, True),
    "accuracy": ("/accuracy", run, True),
    "docs": ("/docs#post-api-calculate", operation, True),
}


def shot(browser: Browser, address: str, name: str, width: int, theme: str, file: Path) -> None:
    """One picture."""
    path, act, whole = SHOTS[name]
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=theme,
        reduced_motion="reduce",
        bypass_csp=True,
    )
    visit = Visit(context.new_page(), address)
    page = visit.open(path, settled="#" in path and not path.startswith("/docs"))
    for view, ready in READY.items():
        if path.startswith(f"/{view}"):
            page.locator(ready).first.wait_for()
    page.wait_for_function("() => !document.querySelector('.compared .wide')")
    if act:
        act(page)
    if whole:  # it is fixed to the screen, and would lie across the picture
        page.add_style_tag(content="#glance { display: none }")
    page.screenshot(path=file, full_page=whole)
    context.close()


def main() -> None:
    """Every view that was asked for, else all of them."""
    folder, asked = Path(sys.argv[1]), sys.argv[2:] or list(SHOTS)
    folder.mkdir(parents=True, exist_ok=True)
    with running(ServiceSettings(log_level="error")) as address, sync_playwright() as playwright:
        browser = launched(playwright)
        for name, width, theme in itertools.product(asked, (1440, 768, 390), ("light", "dark")):
            shot(browser, address, name, width, theme, folder / f"{name}-{width}-{theme}.png")
        browser.close()


if __name__ == "__main__":
    main()
