"""Arguments that say what shape the model has: they must agree with the `model` section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...ledger.quoting import quoted
from ...runfile.program import Setup


def shape_problems(
    meant: Mapping[str, Any], names: Mapping[str, str], setup: Setup
) -> Iterator[str]:
    """A sentence for each key that the model section contradicts.

    - meant: keys of the model section; names: for each of them, the tool's own argument
    """
    facts = setup.model().shape
    for key, value in meant.items():
        if key in facts and facts[key] != value:
            what = f"program.args.{names[key]} means model.{key}={quoted(value)}"
            yield f"{what}, and the model section has {quoted(facts[key])}; leave one out"
