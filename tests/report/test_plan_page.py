"""Plans as a page: self-contained, every plan in it, safe to open."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser

from msgspec.structs import replace

from gpu_mem_calculator.report.plan.figures import plan_axes
from gpu_mem_calculator.report.plan.page import plan_body, plan_page

from .plans_fixture import no_plan_fits, some_plans

PAGE = plan_page(some_plans())


class Balance(HTMLParser):
    """Counts open elements, so that a missing end shows."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """An element begins."""
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """The innermost element ends."""
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """An empty element."""


def test_the_page_needs_nothing_else() -> None:
    """No address of another host; its policy allows its own script and nothing more."""
    assert Balance(PAGE).open == []
    assert not re.search(r"(?:src|href)=|url\(|https?://(?!www\.w3\.org)", PAGE)
    script = re.search(r"<script>(.*?)</script>", PAGE, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in PAGE


def test_every_plan_has_a_point_a_row_and_a_panel() -> None:
    """One panel is open; those of the front are filled."""
    for rank in range(1, 6):
        assert PAGE.count(f'data-plan="{rank}"') == 2
        assert PAGE.count(f'data-rank="{rank}"') == 1
    assert len(re.findall(r'<article class="plan"[^>]*hidden', PAGE)) == 4
    assert len(re.findall(r'class="point[^"]* on-front[^"]*"', PAGE)) == 4


def test_the_run_file_of_a_plan_is_in_its_panel() -> None:
    """Character by character."""
    found = re.findall(r'<pre class="all" tabindex="0"><code>(.*?)</code>', PAGE, re.DOTALL)
    assert [json.loads(unescape(one)) for one in found] == [p.run for p in some_plans().plans]


def test_a_panel_has_stages_parts_and_changes() -> None:
    """Of the first plan: two stages, two parts of time, two changes."""
    first = PAGE.partition('data-rank="1"')[2].partition("</article>")[0]
    assert re.findall(r'<th scope="row">(\d)</th><td class="num">40</td>', first) == ["0", "1"]
    assert "8.10 s, 87 %" in first
    assert '<rect class="t-2" x="87.10%" width="12.90%" height="16"/>' in first
    assert "TP 2" in first
    assert first.count("does not fit") == 1


def test_names_of_users_are_only_text() -> None:
    """A model's name cannot add markup."""
    found = some_plans()
    evil = '<img src=x onerror="alert(1)">'
    plans = [replace(p, why=[evil], settings={"x.y": evil}) for p in found.plans]
    page = plan_page(replace(found, question={"model": {"name": evil}}, plans=plans))
    assert "<img" not in page
    assert page.count("&lt;img") >= 11


def test_where_nothing_fits_the_changes_are_first() -> None:
    """The nearest set-up is shown, too; without any there is only the verdict."""
    body = plan_body(no_plan_fits())
    assert body.index("No set-up fits") < body.index("128 GPUs") < body.index('class="front"')
    assert "svg" not in plan_body(replace(no_plan_fits(), plans=[]))


def test_a_wide_range_has_a_logarithmic_axis() -> None:
    """Otherwise the small values would be one point."""
    one, *_ = some_plans().plans
    slow = [
        replace(one, step_seconds=replace(one.step_seconds, estimate=s)) for s in (0.2, 2.0, 20.0)
    ]
    up = plan_axes(slow)[1]
    low, middle, high = (up.share(s) for s in (0.2, 2.0, 20.0))
    assert abs((middle - low) - (high - middle)) < 1e-9
    assert up.ticks() == [0.2, 0.5, 1, 2, 5, 10, 20]
    assert plan_axes(some_plans().plans)[1].ticks() == [10, 12, 14, 16]
