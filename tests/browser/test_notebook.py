"""Answers as a notebook shows them: in Jupyter's themes, and in the browser's where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from gpu_mem_calculator import diagnose, estimate, sweep
from tests.corpus import sampled
from tests.report.plans_fixture import some_plans

from .test_access import violations

RUN: dict[str, Any] = {"model": {"name": "llama3.2-1b"}, "hardware": {"gpu": "4090"}}
DIED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB."
HOSTS = {  # attributes of body, and the theme of the browser -> what must be seen
    "JupyterLab, light": ('data-jp-theme-light="true"', "dark", "light"),
    "JupyterLab, dark": ('data-jp-theme-light="false"', "light", "dark"),
    "VS Code, dark": ('class="vscode-dark"', "light", "dark"),
    "another, light": ("", "light", "light"),
    "another, dark": ("", "dark", "dark"),
}
PAPERS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
Show = Callable[[str, str], Page]


@cache
def outputs() -> tuple[str, ...]:
    """The view of each kind, the first one twice as a notebook may show it."""
    result, plans = estimate(RUN), some_plans()
    shown = (result, result, result.plot(), plans, plans.plot(), plans.plans[0])
    rest = (diagnose(DIED, RUN), sweep(RUN, batch_size=[1, 2], replay=False))
    return tuple(one._repr_html_() for one in (*shown, *rest))


@pytest.fixture
def show(browser: Browser) -> Iterator[Show]:
    """Shows the outputs on a page with attributes, in a theme of the browser."""
    pages: list[Page] = []

    def made(attributes: str, theme: Any) -> Page:
        page = browser.new_page(color_scheme=theme, viewport={"width": 900, "height": 900})
        pages.append(page)
        page.on("request", lambda request: pytest.fail(f"asks for {request.url}"))
        body = "".join(f"<div class='output'>{one}</div>" for one in outputs())
        head = "<title>A notebook</title><main><h1>Outputs</h1>"
        page.set_content(f"<!doctype html><html lang=en><body {attributes}>{head}{body}</main>")
        return page

    yield made
    for page in pages:
        page.close()


@pytest.mark.parametrize("host", HOSTS)
def test_outputs_have_the_theme_of_the_notebook(show: Show, host: str) -> None:
    """Their own paper and ink, so that both always go together."""
    attributes, browsers, seen = HOSTS[host]
    page = show(attributes, browsers)
    colours = "all => all.map(one => getComputedStyle(one).backgroundColor)"
    assert set(page.eval_on_selector_all(".gpu-mem", colours)) == {PAPERS[seen]}
    drawn = "all => all.map(one => getComputedStyle(one).fill)"
    assert "rgb(0, 0, 0)" not in page.eval_on_selector_all("svg rect, svg path.slice", drawn)


@pytest.mark.parametrize("theme", sampled(list(PAPERS), keep=1))
def test_everybody_can_read_them(show: Show, theme: str) -> None:
    """No violation that axe knows of, contrasts included; nothing is cut off."""
    page = show("", theme)
    assert violations(page) == []
    wide = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.eval_on_selector_all(".gpu-mem", wide) == 0
