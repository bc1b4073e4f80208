"""The page on QLoRA says what the code computes."""

from __future__ import annotations

from tests.docs.test_documents import ROOT, script


def test_the_page_on_qlora_is_up_to_date() -> None:
    """`python docs/qlora.py` would change nothing."""
    assert script("qlora")["page"]() == (ROOT / "docs" / "qlora.md").read_text("utf-8")
