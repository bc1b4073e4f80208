"""The commands that people ran are stored whole: what each has, and nothing that is secret."""

from __future__ import annotations

import json
import re
from operator import ge
from typing import Any

import pytest

from tests.corpus import sampled
from tests.tools.corpora.ran import (
    ACCEPTED,
    NAMES,
    NOT_HERE,
    REFUSED,
    STORED,
    UNKNOWN,
    at_releases,
    outcome,
    with_model,
)
from tests.tools.corpora.score import rows

NEEDED = {"id", "address", "date", "tool", "releases", "command", "gpu"}
STORED_ROWS = json.loads(STORED.read_text(encoding="utf-8"))
STORED_ENDS = {
    (name, row["id"]): (row["now"], row["at"], row["named"])
    for name, found in STORED_ROWS.items()
    for row in found
}
# Only rises, but for a server of October 2023 (Ollama 0.1), whose llama.cpp is not modelled.
LEAST_ACCEPTED = (27, 26, 53)
# Of a fork, with options of its own that no release of OpenRLHF has.
FORK = "xiusic/Rubric-RM@ed64965:rubric_rm/OpenRLHF/scripts/run_hard.sh"
SECRET = re.compile(r"hf_[A-Za-z0-9]{20}|\b[0-9a-f]{40}\b|[\w.]+@[\w-]+\.(com|org|edu)\b")


@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_all_that_is_needed_and_no_secret(name: str) -> None:
    """A public address, a month, the releases, the command, the card."""
    ids = [row["id"] for row in rows(name)]
    assert len(set(ids)) == len(ids)
    for row in rows(name):
        assert NEEDED <= row.keys() <= NEEDED | {"files", "gpus", "cut", "pasted"}, row["id"]
        assert row["address"].startswith("https://github.com/")
        assert re.fullmatch(r"20\d\d-\d\d", row["date"])
        assert row["releases"]
        assert not SECRET.search(_texts(row)), row["id"]


def test_the_drawn_commands_are_sixty_of_three_years() -> None:
    """At least two tools in three years, as they were drawn."""
    drawn = rows("repositories")
    assert len(drawn) == 60
    assert {row["date"][:4] for row in drawn} == {"2023", "2024", "2025"}


def _texts(row: dict[str, Any]) -> str:
    return "\n".join([row["command"], *row.get("files", {}).values()])


@pytest.mark.parametrize(
    ("name", "row"),
    sampled({f"{name} {row['id']}": (name, row) for name in NAMES for row in rows(name)}, 6),
)
def test_a_command_ends_as_stored(name: str, row: dict[str, Any]) -> None:
    """`python -m tests.tools.corpora.ran --store` would change nothing."""
    now, then = outcome(row)[0], outcome(row, *at_releases(row))[0]
    assert (now, then, with_model(row, now)) == STORED_ENDS[name, row["id"]]


def test_no_drawn_command_is_refused_for_a_name_that_its_release_had() -> None:
    """And those that are accepted, as they are or where the model is named, get no fewer."""
    drawn = STORED_ROWS["repositories"]
    whens = ("now", "at", "named")
    assert {row["id"] for row in drawn if UNKNOWN in [row[when] for when in whens]} == {FORK}
    accepted = [sum(row[when] == ACCEPTED for row in drawn) for when in whens]
    assert all(map(ge, accepted, LEAST_ACCEPTED)), accepted


def test_every_command_has_a_stored_end() -> None:
    """No row is forgotten."""
    assert {(name, row["id"]) for name in NAMES for row in rows(name)} == set(STORED_ENDS)


@pytest.mark.parametrize(("name", "least"), [("threads", 0.93), ("neighbours", 0.88)])
def test_of_commands_with_all_that_is_needed_so_many_are_accepted(name: str, least: float) -> None:
    """At their releases; those whose model or file is not here, and those that are refused rightly,
    with the reason, are not counted. The share must not fall.
    """
    rightly = json.loads(REFUSED.read_text(encoding="utf-8"))
    ends = {own: end for (file, own), (_, end, _) in STORED_ENDS.items() if file == name}
    counted = [end for own, end in ends.items() if end != NOT_HERE and own not in rightly]
    assert counted.count(ACCEPTED) >= least * len(counted)


def test_what_is_refused_rightly_is_refused() -> None:
    """A reason stands for no command that is accepted."""
    rightly = json.loads(REFUSED.read_text(encoding="utf-8"))
    ends = {own: end for (_, own), (_, end, _) in STORED_ENDS.items()}
    assert all(ends[own] != ACCEPTED for own in rightly)
