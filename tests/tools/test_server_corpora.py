"""Public commands of servers: every option of nearly all of them is classified.

vLLM's are those of vllm-project/recipes; its 32 commands of vLLM-Omni, another package, are not
read. SGLang's are those of its documentation at v0.5.18, without the pages on diffusion. Commands
with placeholders instead of values are left out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ..corpus import sampled
from .corpora.score import ANSWERED, IN_FULL, LIMITED, outcome, rows

LEAST = {"vllm": 0.94, "sglang": 0.95}  # shares that are read in full
ANSWERS = {"vllm": 0.48, "sglang": 0.46}  # shares that are answered in bytes
CASES = [row for tool in LEAST for row in rows(tool)]


@pytest.mark.parametrize("row", sampled(CASES, 20))
def test_a_public_command_is_read_or_refused_in_sentences(row: dict[str, Any]) -> None:
    """No public command ends in a traceback."""
    found, why = outcome(row)
    assert bool(why) == (found != ANSWERED)


@pytest.mark.proof
@pytest.mark.parametrize("tool", LEAST)
def test_most_public_commands_are_read_in_full(tool: str) -> None:
    """The shares of commands that are read in full, and that are answered."""
    found = Counter(outcome(row)[0] for row in rows(tool))
    assert sum(found[one] for one in IN_FULL) >= LEAST[tool] * found.total()
    assert found[ANSWERED] + found[LIMITED] >= ANSWERS[tool] * found.total()
