"""The pages on what frameworks allocate: their sentences are cited, their runs are answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpu_mem_calculator
from maintenance.documents import frameworks
from maintenance.documents.frameworks import FOLDER, PAGES, Page, pages

PACKAGE = Path(gpu_mem_calculator.__file__).parent


@pytest.fixture(scope="module")
def code() -> str:
    """All text of the package, with single spaces; parts of a string joined."""
    texts = (
        path.read_text("utf-8") for kind in ("py", "toml") for path in PACKAGE.rglob(f"*.{kind}")
    )
    return re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*"', "", "\n".join(texts)))


@pytest.mark.parametrize("row", PAGES.values(), ids=PAGES)
def test_a_sentence_has_a_source_that_the_package_cites(row: Page, code: str) -> None:
    """So a page says nothing that was not read; without a source it says what is not modelled."""
    for says, source in row.does:
        assert source in code, source
        assert source or re.search(r"not modelled|refused", says), says
        assert not says.endswith(".")


def test_a_run_s_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds to the height of an instant, and the sum under the table to what the card must have."""
    monkeypatch.setattr(frameworks, "PAGES", {"ollama": PAGES["ollama"], "grpo": PAGES["grpo"]})
    made = pages()
    assert "(grpo.md)" in made[f"{FOLDER}/index.md"]
    for name in ("ollama", "grpo"):
        text = made[f"{FOLDER}/{name}.md"]
        rows = re.findall(r"^\| ([^|]+) ((?:\| [\d.]* )+)\|$", text, re.MULTILINE)
        heights = [[float(one.strip() or 0) for one in row.split("|")[1:]] for _, row in rows]
        assert len(heights) > 2
        assert all(abs(first - sum(rest)) < 0.05 for first, *rest in heights)
        (line,) = re.findall(r"^.* at the peak .*$", text, re.MULTILINE)
        total, *parts = map(float, re.findall(r"\d+\.\d\d", line))
        assert abs(sum(parts) - total) < 0.05
        assert f"{total:.1f} of " in text
        assert "## On the host" in text


def test_what_a_rollout_leaves_open_is_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its bound."""
    monkeypatch.setattr(frameworks, "PAGES", {"verl": PAGES["verl"]})
    text = pages()[f"{FOLDER}/verl.md"]
    assert re.search(r"gpu_memory_utilization=0.5`: vllm takes .* \(adds at most \d", text)
