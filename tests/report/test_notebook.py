"""Answers in a notebook: every kind, whatever is in it."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from gpu_mem_calculator import diagnose, estimate, plan, sweep
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.ledger.units import GIB

from .plans_fixture import no_plan_fits

HOSTILE = "<img src=x onerror=alert(1)>\"&'</style><script>alert(2)</script>"
SIZES = {"num_parameters": "124M", "num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
RUN: dict[str, Any] = {"model": {"name": "llama3.2-1b"}, "hardware": {"gpu": "4090"}}
DIED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total "
    "capacity of 23.52 GiB of which 1.12 GiB is free."
)
NAMES = (
    *("result", "short", "server", "plans", "plan", "nothing fits", "diagnosis", "no cause"),
    *("step", "scatter", "sweep"),
)
MOST = {"scatter": 20_000}  # bytes; of the others
MOST_BYTES = 13_000


@cache
def answers() -> dict[str, Any]:
    """An answer of every kind, with hostile texts where a user's stand."""
    asked = {"gpus": 2, "gpu": "4090", "global_batch": 16}
    plans = plan("llama3.2-1b", seq_len=2048, **asked)
    result = estimate({"model": {"name": HOSTILE, **SIZES}})
    return {
        "result": result,
        "short": estimate({"model": {"name": "llama2-7b"}, "hardware": {"gpu": "4090"}}),
        "server": estimate("vllm serve meta-llama/Llama-3.1-8B"),
        "plans": plans,
        "plan": plans.plans[0],
        "nothing fits": no_plan_fits(),
        "diagnosis": diagnose(DIED, RUN),
        "no cause": diagnose(HOSTILE),
        "step": result.plot(),
        "scatter": plans.plot(),
        "sweep": sweep({"model": {"name": HOSTILE, **SIZES}}, batch_size=[1, 2]),
    }


class Tags(HTMLParser):
    """The tags of a page and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_every_kind_of_answer(name: str) -> None:
    """Well-formed and small; no script, no handler, no id that a second output would repeat, and
    nothing that is loaded."""
    page = answers()[name]._repr_html_()
    ElementTree.fromstring(page)
    for tag, attributes in Tags(page).found:
        assert tag not in ("script", "img", "link", "iframe", "object")
        assert not [key for key in attributes if key.startswith("on") or key in ("id", "href")]
    assert "url(" not in page
    assert "@import" not in page
    assert len(page.encode()) < MOST.get(name, MOST_BYTES)


def test_names_of_users_are_escaped() -> None:
    """A model's name cannot end the styles, and is read as it was written."""
    page = ElementTree.fromstring(answers()["result"]._repr_html_())
    assert HOSTILE[:40] in "".join(page.itertext())


def test_the_verdict_comes_first_and_the_parts_add_up() -> None:
    """The table has the parts of the total, the bar their widths."""
    result = answers()["short"]
    page = ElementTree.fromstring(result._repr_html_())
    texts = [one.text or "" for one in page.iter("p")]
    assert texts[1] == f"✗ {verdict_line(result)}"
    figures = [float(row[1][0].text or "") for row in page.iter("tr") if len(row) == 3 and row[1]]
    assert figures[-1] == pytest.approx(result.total_memory_per_gpu_gb, abs=0.006)
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.03)
    widths = [one.attrib["width"] for one in page.iter("rect") if "%" in one.attrib["width"]]
    assert sum(float(one.rstrip("%")) for one in widths) == pytest.approx(100, abs=0.1)


def test_the_picture_has_the_bytes_of_the_result() -> None:
    """Tooltips have every instant of the timeline, the peak with what is outside torch."""
    result = answers()["result"]
    notes = [
        one.text or "" for one in ElementTree.fromstring(result.plot().svg()).iter() if one.text
    ]
    heads = [one.splitlines()[0] for one in notes if "\n" in one]
    assert len(heads) == len(result.timeline)
    most = max(sum(one["bytes"].values()) for one in result.timeline) + result.outside_torch_bytes
    assert any(one.endswith(f": {most / GIB:,.2f} GiB") for one in heads)


@pytest.mark.parametrize("name", ["step", "scatter"])
def test_a_picture_is_saved_as_a_file_of_its_own(name: str, tmp_path: Path) -> None:
    """In one theme's colours, without variables that nothing sets."""
    for theme in ("light", "dark"):
        answers()[name].save(tmp_path / theme, theme)
    light, dark = ((tmp_path / theme).read_text(encoding="utf-8") for theme in ("light", "dark"))
    assert light != dark
    ElementTree.fromstring(light)
    used = set(re.findall(r"var\((--\w+)\)", light))
    assert used <= set(re.findall(r"(--\w+):", light))
    with pytest.raises(ValueError, match="light, dark"):
        answers()[name].save(tmp_path / "x", "blue")
    with pytest.raises(ValueError, match=r"x\.png' is not the name of an SVG file; use 'x\.svg'"):
        answers()[name].save(tmp_path / "x.png")


def test_a_question_without_a_plan_has_no_picture() -> None:
    """And says so; the view names the smallest changes."""
    found = answers()["nothing fits"]
    with pytest.raises(ValueError, match="no set-up fits"):
        replace(found, plans=[]).plot()
    assert "no set-up fits" in found._repr_html_()
    assert "it would fit with" in found._repr_html_()


def test_a_diagnosis_has_the_cause_its_evidence_and_what_helps() -> None:
    """All that the text has."""
    found = answers()["diagnosis"]
    words = "".join(ElementTree.fromstring(found._repr_html_()).itertext())
    assert found.cause is not None
    for sentence in (found.cause.sentence, *found.evidence, found.summary):
        assert sentence in words
    assert all(one.sentence in words and one.command in words for one in found.remedies)
