"""The tables of arguments list every argument of the tools' own classes, with its default."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import Any

import pytest

from gpu_mem_calculator.tools.translation.arguments import FREE, MEMORY, REFUSED, argument_table

# A table, and the dataclass that it lists.
CLASSES = {
    "transformers/arguments": "transformers.TrainingArguments",
    "trainer/peft": "peft.LoraConfig",
    **{f"trl/{name.lower()}": f"trl.{name}Config" for name in ("SFT", "DPO", "KTO", "Reward")},
}


def _dataclass(path: str) -> Any:
    module, _, name = path.rpartition(".")
    pytest.importorskip(module.partition(".")[0])
    return getattr(import_module(module), name)


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return dataclasses.asdict(made) if dataclasses.is_dataclass(made) else made
    return None if field.default is dataclasses.MISSING else field.default


@pytest.mark.parametrize(("table", "path"), CLASSES.items())
def test_a_table_lists_every_argument_with_its_default(table: str, path: str) -> None:
    """A new argument of a tool, or another default, is noticed."""
    fields = {one.name: _default(one) for one in dataclasses.fields(_dataclass(path)) if one.init}
    rows = argument_table(table)
    assert rows.keys() == fields.keys()
    assert {name: row.default for name, row in rows.items()} == fields


@pytest.mark.parametrize("table", CLASSES)
def test_every_argument_has_an_effect_and_a_reason(table: str) -> None:
    """What is not honoured says why."""
    for row in argument_table(table).values():
        assert row.effect in (MEMORY, FREE, REFUSED)
        assert row.why or row.effect == MEMORY
