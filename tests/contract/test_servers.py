"""Every server is whole: its row, its engine, and what lies outside them. A message says what to
add.
"""

from __future__ import annotations

import pytest

from gpu_mem_calculator.runfile.inference_config import InferenceConfig
from gpu_mem_calculator.serving import server, server_names, server_row, spellings
from gpu_mem_calculator.timing.serving.measured import COSTS, SHARES
from tests.conftest import ROOT
from tests.contract.measured import values

NAMES = server_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_server_has_its_row(name: str) -> None:
    """A title of its own, cards, and the keys that its row names."""
    row, engine = server_row(name), server(name)
    assert row.title == engine.title
    assert [server_row(other).title for other in NAMES].count(row.title) == 1
    assert row.runtimes, f"serving/{name}/row.py: which kinds of cards has it kernels for?"
    keys = {row.request_limit, row.prompt_chunk[0], *(change.key for change in row.changes)}
    unknown = keys - set(InferenceConfig.__struct_fields__)
    assert not unknown, f"serving/{name}/row.py names keys that no run file has: {unknown}"


@pytest.mark.parametrize("name", NAMES)
def test_a_server_has_its_options(name: str) -> None:
    """Each is a key of the run file, and its name is a spelling of its own."""
    assert set(server(name).options) <= set(InferenceConfig.__struct_fields__)
    assert spellings()[name] == name


@pytest.mark.parametrize("name", NAMES)
def test_a_server_was_measured(name: str) -> None:
    """By a start-up log or a run of this repository, in memory."""
    assert name in values("inference", "engine"), (
        f"no row of tests/ground_truth or tests/new_runs is of {name!r}: add start-up logs, or "
        "measure one (gpu-mem-calc measure)"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_server_has_seconds(name: str) -> None:
    """Costs of its own in the table of measured ones, and the share of a card that it reaches."""
    for table in (COSTS, SHARES):
        assert name in table, f"timing/serving/measured.py: add a row of {name!r} to both tables"


@pytest.mark.parametrize("name", NAMES)
def test_a_server_is_documented(name: str) -> None:
    """In the guide to serving, by its title."""
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert server_row(name).title in text, f"docs/serving.md does not speak of {name!r}"
