"""Every policy of recompute is whole, under every engine. A message says what to add."""

from __future__ import annotations

import json

import pytest

from gpu_mem_calculator.run.recompute import FULL, NONE
from gpu_mem_calculator.runfile.resolve.recompute_policies import LEVELS, NAMES, find_recompute
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.sections import SECTIONS
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names
from tests.conftest import ROOT, small_run
from tests.contract.measured import values

ROWS = "src/gpu_mem_calculator/runfile/resolve/recompute_policies.py"
PAIRS = [(name, one) for name in NAMES for one in engine_names()]


def policy(given: object) -> object:
    """What a value of `training.recompute` means."""
    return find_recompute(SECTIONS["training"](recompute=given))  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (NONE, FULL)])
def test_a_short_name_is_its_keys(name: str) -> None:
    """A name and its framework's own keys mean the same."""
    assert policy(name) == policy(NAMES[name]), f"{ROWS}: keys of {name!r}"


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_was_measured(name: str) -> None:
    """By its name, by its framework's keys, or by the level that is the same."""
    found = values("training", "recompute") | values("training", "activation_checkpointing")
    levels = {level for level, (kind, _) in LEVELS.items() if kind == name}
    keys = [json.loads(one) for one in found if isinstance(one, str) and one.startswith("{")]
    assert name in found or levels & found or policy(name) in map(policy, keys), (
        f"no measured run of tests/ground_truth or tests/new_runs has recompute={name!r}: measure "
        "one (gpu-mem-calc measure)"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_documented(name: str) -> None:
    """In the guide to engines."""
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in text, f"docs/engines.md, What is recomputed: add a row for {name!r}"


@pytest.mark.parametrize(("name", "of"), PAIRS)
def test_an_engine_has_a_policy_or_refuses_it(name: str, of: str) -> None:
    """It changes what is alive, or the sentence names the key."""
    try:
        found = resolve(read(small_run(of, 1, training={"recompute": name})).file)
    except InputError as error:
        assert "recompute" in str(error) or "checkpointing" in str(error), str(error)
        return
    plain = resolve(read(small_run(of, 1)).file)
    with_it, without = (one.engine.ledger(one.run).entries for one in (found, plain))
    same = [(e.name, e.bytes) for e in with_it] == [(e.name, e.bytes) for e in without]
    assert same == (name == NONE), f"{of}: recompute={name!r} changes nothing; refuse or model it"
