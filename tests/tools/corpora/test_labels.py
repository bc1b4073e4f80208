"""Readers agree with labels that were written without them, from the tools' own sources."""

from __future__ import annotations

import pytest

from tests.tools.corpora.labelled import differences, labelled

LEAST_AGREEMENT = 0.95
DRAWN = 60


def test_readers_agree_with_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """All labelled keys of nearly every file are read as the tool's source means them."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    labels = labelled()
    wrong = {f"{one['corpus']} {one['source']}": differences(one) for one in labels}
    wrong = {name: lines for name, lines in wrong.items() if lines}
    assert len(labels) == DRAWN
    assert len(wrong) <= (1 - LEAST_AGREEMENT) * DRAWN, wrong


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": {"training.seq_len": 2047}},
        {"labels": {"training.lora.target_modules": "q_proj"}},
        {"limited": ["a word that no limit has"]},
    ],
    ids=lambda changed: str(changed),
)
def test_another_label_differs(changed: dict[str, object]) -> None:
    """A label that says something else is noticed."""
    [label] = [one for one in labelled() if "devstral-small-qlora" in one["source"]]
    assert differences(label) == []
    assert len(differences(label | changed)) == 1
