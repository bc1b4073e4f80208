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
from gpu_mem_calculator.report.plan.scatter import placed_labels
from gpu_mem_calculator.report.plan.words import change_words

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


def test_the_best_of_each_engine_comes_first() -> None:
    """Then other ideas; what differs in details is folded; a user's own are not grouped."""
    plans = some_plans()
    again = replace(plans.plans[0], rank=6, settings={"training.seed": 1})
    text = plan_body(replace(plans, plans=[*plans.plans, again]), asked=True)
    assert text.startswith('<h2 class="asked">llama3.1-70b on 64 × NVIDIA H100 80GB SXM5')
    table = text[text.index('class="ranked"') :]
    titles = re.findall(r'scope="colgroup"[^>]*>([^<]*)', table)
    assert titles == ["The best of each engine", "Other ideas, best first"]
    assert re.findall(r'class="rank" data-plan="(\d)"', table) == ["1", "3", "4", "2", "5", "6"]
    assert "<summary>The same ideas with other details: 1</summary>" in table
    own = replace(plans, question={"candidates": 5})
    assert "colgroup" not in plan_body(own)


def test_what_is_not_replayed_yet_says_so() -> None:
    """In its row, its panel and its point; memory is then a least."""
    plans = some_plans()
    text = plan_body(replace(plans, plans=[replace(plans.plans[0], replayed=False)], front=[0]))
    assert '<tr class="waiting" title="not replayed yet">' in text
    assert "not replayed yet</dd>" in text
    assert re.search(r"at least 7\d\.\d of", text)
    assert 'on-front named waiting"' in text


def test_numbers_of_the_front_lie_on_nothing() -> None:
    """However near the points are; those without a place are shown with their plan."""
    points = {rank: (100.0 + 2 * rank, 100.0 + rank) for rank in range(1, 10)}
    labels = placed_labels(points)
    boxes = []
    for rank, label in labels.items():
        if label.shown:
            x, y = points[rank]
            left = x + label.across - {"start": 0, "middle": 3.5, "end": 7}[label.anchor]
            boxes.append((left, y + label.down - 9, left + 7, y + label.down))
    assert labels[1].shown
    assert 1 < len(boxes) < 9
    marks = [(x - 7, y - 7, x + 7, y + 7) for x, y in points.values()]
    for number, one in enumerate(boxes):
        for other in (*boxes[:number], *marks):
            apart = one[2] <= other[0] or other[2] <= one[0]
            assert apart or one[3] <= other[1] or other[3] <= one[1]


def test_words_are_not_names_of_keys() -> None:
    """Losses, switches and interleaving are said as people say them."""
    assert change_words({"engine.distributed_optimizer": False}) == "no distributed optimizer"
    assert change_words({"training.loss": "te_fused"}) == "Transformer Engine's loss"
    assert change_words({"parallelism.virtual_pipeline_size": 4}) == "interleaved in 4 chunks"


def test_what_was_assumed_is_said() -> None:
    """A batch and a sequence that nobody gave, and host RAM that nobody said a node has."""
    plans = some_plans()
    asked = {**plans.question, "global_batch": None, "assumed": {"seq_len": 8192}}
    plan = replace(plans.plans[0], host_bytes_per_node=152 * 2**30)
    said = unescape(plan_body(replace(plans, question=asked, plans=[plan], front=[0]), asked=True))
    assert "sequence 8,192 (assumed), global batch 1,024 (assumed)" in said
    assert "152 GiB a node (assumed)" in said
    hardware = {**plan.run["hardware"], "node_memory_gb": 2048}
    known = replace(plan, run={**plan.run, "hardware": hardware})
    said = unescape(plan_body(replace(plans, plans=[known], front=[0]), asked=True))
    assert "global batch 1,024, 1 T tokens<" in said
    assert "152 GiB a node<" in said
