"""Set-ups to begin with, and what the page says of them, as numbers."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page

# a training run and a server that are calculated in milliseconds
TRAIN = (
    "/#train?model.name=gpt2&hardware.gpu=h100-80gb-sxm&hardware.num_gpus=2"
    "&engine.type=pytorch_ddp&training.batch_size=4&training.seq_len=512"
)
SERVE = "/#serve?model.name=qwen3-0.6b&hardware.gpu=h100-80gb-sxm&inference.engine=vllm"
SLICES = """() => {
  const found = {};
  for (const one of document.querySelectorAll(".plot .slice")) {
    const path = one.getAttribute("d");
    const bars = [...path.matchAll(/M[\\d.]+ ([\\d.]+)V([\\d.]+)h/g)];
    const levels = [...path.matchAll(/V([\\d.]+)H/g)].map((each) => Number(each[1]));
    const tall = bars.length
      ? bars.map(([, low, high]) => low - high)
      : levels.slice(0, levels.length / 2).map((high, i) => levels[levels.length - 1 - i] - high);
    found[one.dataset.kind] = { ...tall };
  }
  return found;
}"""


def sizes(page: Page) -> dict[str, int]:
    """The numbers beside the picture: name to bytes."""
    rows = page.locator(".numbers > div").evaluate_all(
        "all => all.map(one => [one.querySelector('dt').textContent,"
        " one.querySelector('dd [title]')?.title ?? ''])"
    )
    return {name: int(re.sub(r"\D", "", text) or -1) for name, text in rows}


def kinds(page: Page) -> dict[str, float]:
    """The card's kinds at the instant that is looked at: name to GiB."""
    rows = (
        page.locator(".card > div")
        .nth(1)
        .locator(".row")
        .evaluate_all(
            "all => all.map(one => [one.querySelector('.name').textContent,"
            " one.querySelector('.figure').textContent])"
        )
    )
    return {name: gib(text) for name, text in rows}


def gib(text: str) -> float:
    """The first number of a text; a dash is nothing."""
    found = re.search(r"\d[\d,]*(\.\d+)?", text)
    return float(found[0].replace(",", "")) if found else 0.0


def peak(page: Page) -> float:
    """The height of the highest instant, in GiB."""
    return gib(page.locator(".plot .above text").filter(has_text="peak").text_content() or "")


def field(page: Page, path: str) -> Locator:
    """The field of a key of the run file."""
    return page.locator(f"[data-path='{path}']")


def verdict(page: Page) -> Locator:
    """What the page says on whether it fits."""
    return page.locator(".verdict-holder .verdict")
