"""What every family's reader makes of a config.json, and of those with one key left out.

`python -m tests.golden.test_families` writes the file anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families import families, read_config
from gpu_mem_calculator.models.families.config import ConfigError
from tests.golden.stored_runs import BETWEEN, HERE, digest, stored_lines
from tests.models.families.test_shapes import CASES
from tests.serving.every_family import NEEDED

PATH = HERE / "families.txt"
PARTS = 8  # tests, so that a changed default fails one early
TITLE = "parameters, of the tower, positions, digests of all fields and of configs without one key"
KEPT = ("model_type", "num_hidden_layers", "n_layer", "num_layers", "n_layers")


def configs() -> dict[str, dict[str, Any]]:
    """Each family with its defaults, without and with the objects of its parts, and the cases."""
    known: dict[str, dict[str, Any]] = {}
    for name in families():
        plain = {"model_type": name, **NEEDED.get(name, {})}
        known[f"{name} alone"] = plain
        known[f"{name} and parts"] = {**plain, "text_config": {}, "vision_config": {}}
    return known | CASES


def shortened(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A config.json without each of its keys, and without those of the objects in it."""
    for key, value in config.items():
        if key not in KEPT:
            yield {name: one for name, one in config.items() if name != key}
        if isinstance(value, dict):
            yield from ({**config, key: inner} for inner in shortened(value))


def fields(config: dict[str, Any]) -> Arch | str:
    """What is read, or the sentence that refuses it."""
    try:
        return read_config(config)
    except ConfigError as error:
        return str(error)


def texts(read: Arch | str) -> list[str]:
    """All fields, layers that are the same once."""
    if isinstance(read, str):
        return [read]
    names = [name for name in read.__struct_fields__ if name != "layers"]
    return [repr(getattr(read, name)) for name in (*names, "runs")]


def figures(config: dict[str, Any]) -> str:
    """The figures of one config.json."""
    read = fields(config)
    rest = digest([texts(fields(one)) for one in shortened(config)])
    if isinstance(read, str):
        return f"refused {digest(read)}: {read[:60].strip()} {rest}"
    tower = sum(weight.numel for weight in read.tower)
    return f"{read.num_parameters} {tower} {read.max_seq_len} {digest(texts(read))} {rest}"


@pytest.mark.parametrize("part", range(PARTS))
def test_families_are_read_as_they_were(part: int) -> None:
    """A default or a size that changes shows for each family that has it."""
    known = configs()
    for line in stored_lines(PATH)[part::PARTS]:
        name, _, stored = line.partition(BETWEEN)
        assert figures(known[name]) == stored, name


def test_every_family_is_stored() -> None:
    """A new family needs a line: the module, run as a program, writes it."""
    stored = {line.partition(BETWEEN)[0] for line in stored_lines(PATH)}
    assert stored == set(configs())


if __name__ == "__main__":
    rows = [f"{name}{BETWEEN}{figures(config)}" for name, config in configs().items()]
    PATH.write_text("\n".join((f"# config{BETWEEN}{TITLE}", *rows)) + "\n", encoding="utf-8")
    sys.exit(0)
