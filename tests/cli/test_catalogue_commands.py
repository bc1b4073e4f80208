"""`presets`, `gpus`, `schema` and `validate`."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from gpu_mem_calculator import catalog

from .conftest import Command


@pytest.mark.parametrize(("verb", "table"), [("presets", "index"), ("gpus", "gpus")])
def test_every_form_lists_every_name(command: Command, verb: str, table: str) -> None:
    """The list, the table and the JSON have the same names."""
    names = catalog.names(table)
    assert command(verb, "--format", "list").out.split() == names
    assert [row["name"] for row in command(verb, "--format", "json").data] == names
    rows = command(verb, "--format", "table").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == names


@pytest.mark.parametrize("verb", ["presets", "gpus"])
def test_tables_are_narrow(command: Command, verb: str) -> None:
    """No row is wider than 80 columns."""
    assert max(map(len, command(verb).out.splitlines())) <= 80


def test_a_word_filters(command: Command) -> None:
    """A word keeps the names that have it."""
    found = command("gpus", "H200", "--format", "list").out.split()
    assert found
    assert all("h200" in name for name in found)


def test_presets_know_hub_names(command: Command) -> None:
    """A hub id finds its preset."""
    answer = command("presets", "meta-llama/Llama-3.1-70B", "--format", "list")
    assert "llama3.1-70b" in answer.out.split()


def test_the_schema_accepts_the_run_files(command: Command, configs: Path) -> None:
    """The run files that come with the project are valid by the schema."""
    import json

    schema = command("schema").data
    for file in configs.glob("*.json"):
        jsonschema.Draft202012Validator(schema).validate(json.loads(file.read_text()))


def test_the_schema_refuses_an_unknown_key(command: Command) -> None:
    """An unknown key is not valid by the schema."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": {"nam": "gpt2"}}, command("schema").data)


def test_validate_says_valid(command: Command, configs: Path) -> None:
    """A good run file gets one line."""
    path = configs / "llama2_7b_deepspeed.json"
    assert command("validate", path) == (0, f"✓ {path} is valid\n", "")


def test_validate_names_every_problem(command: Command, configs: Path) -> None:
    """Each problem is a line of its own on stderr."""
    path = configs / "llama2_7b_deepspeed.json"
    sets = [
        "--set",
        "engine.zero_stage=5",
        "--set",
        "training.batchsize=1",
        "--set",
        "modell.name=x",
    ]
    answer = command("validate", path, *sets)
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 3
    for word in ("engine.zero_stage=5", "training.batchsize", "'modell'"):
        assert word in answer.err


def test_validate_checks_the_engine_rules(command: Command, configs: Path) -> None:
    """A shape that the engine refuses is a problem, too."""
    path = configs / "gpt3_175b_megatron.json"
    sets = ["--set", "parallelism.tensor_parallel_size=5", "--set", "hardware.num_gpus=640"]
    answer = command("validate", path, *sets)
    assert answer.code == 2
    assert "does not divide 96 heads" in answer.err
