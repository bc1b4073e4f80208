"""Public jobs: the card that each says is read, or the answer is that nobody says it."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.catalog.cards import meant
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading.reading import Reading
from tests.tools.reading_of import readings_of

FOLDER = Path(__file__).parent
LABELS = [json.loads(line) for line in (FOLDER / "labels.jsonl").read_text().splitlines()]
SEVERAL = [row for row in LABELS if row["several"]]
# Files whose commands start no tool that is known, or need a file or a value that is not there.
REFUSED = frozenset(
    [
        *("02", "04", "06", "08", "10", "12", "19", "23", "27", "29", "37", "39", "40", "42"),
        *("46", "48", "50", "51", "52", "55", "58", "59", "61", "62", "63", "70", "71"),
        "72",
    ]
)
# Cards of these are in a cluster's own words alone.
UNSAID = frozenset(["19", "63"])
# A partition that a site calls a40x is asked for: it is no card's name.
ASKED = frozenset(["36"])
# Several services of which some are known; positions are those among the known ones.
SHARED = {"28": [(0, 1), (0, 2), (1, 2)], "32": [(0, 1)]}


def readings(row: dict[str, Any]) -> list[Reading]:
    """What a job means; none where it is refused."""
    try:
        found = readings_of([row["file"]], FOLDER)
    except InputError as error:
        assert all(problem.strip() for problem in error.problems)
        return []
    return [one for one in found if not one.problems]


def card_names(name: str | None) -> set[str]:
    """The cards of the catalogue that a text means."""
    return {row["name"] for row in meant(name)} if name else set()


@pytest.mark.parametrize("row", LABELS, ids=[row["id"] for row in LABELS])
def test_the_card_of_a_job(row: dict[str, Any]) -> None:
    """It is the one that the file says; where the file says none or a choice, no single card is."""
    found = readings(row)
    assert bool(found) is (row["id"] not in REFUSED)
    said = card_names(row["card"])
    for one in found:
        hardware = one.run["hardware"]
        taken = card_names(hardware.get("gpu"))
        assert taken <= said if said else len(taken) != 1
        assert taken or not said or row["id"] in ASKED
        assert "gpu_memory_gb" not in hardware
        gpus, nodes = row["num_gpus"], row["num_nodes"]
        if gpus is not None and nodes is not None:
            assert hardware.get("num_gpus", 1) == gpus * nodes
            assert hardware.get("num_nodes", 1) in (1, nodes)


@pytest.mark.parametrize(
    "row", [row for row in LABELS if row["id"] in REFUSED], ids=sorted(REFUSED)
)
def test_what_is_refused_still_says_its_card(row: dict[str, Any]) -> None:
    """The card of a job whose program is not known is that of the label; none is made up."""
    try:
        found = readings_of([row["file"]], FOLDER)
        problems = [problem for one in found for problem in one.problems]
    except InputError as error:
        problems = error.problems
    said = {name for one in problems for name in re.findall(r"its card: ([^,]+), by", one)}
    cards = [card_names(name) for name in said]
    label = card_names(row["card"])
    assert all(one <= label if label else len(one) != 1 for one in cards)
    assert bool(cards) or not label or row["id"] in UNSAID


@pytest.mark.parametrize("row", SEVERAL, ids=[row["id"] for row in SEVERAL])
def test_what_shares_a_card(row: dict[str, Any]) -> None:
    """Services and commands that the file puts on one card at the same time."""
    found = readings(row)
    pairs = [
        pair
        for pair in combinations(range(len(found)), 2)
        if set(found[pair[0]].slots) & set(found[pair[1]].slots)
        and (found[pair[0]].devices or ("0",))[0] == (found[pair[1]].devices or ("0",))[0]
    ]
    assert pairs == SHARED.get(row["id"], [])
