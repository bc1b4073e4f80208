"""Parts of a rank's memory, and what of a run most of them depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from ...ledger.formula import Term, product
from ...ledger.source import Source
from ...run.run import Run

H100 = "9.0"
UNMEASURED = ("6.0", "6.1", "7.2", "8.7", "10.3", "11.0", "12.1")  # they count as an H100
T = TypeVar("T")


class SourcedBytes(NamedTuple):
    """A part of a rank's memory."""

    name: str
    bytes: int
    source: Source
    formula: str = ""


def part(name: str, source: Source, *factors: int | Term | list[Term]) -> SourcedBytes:
    """A part whose bytes are a product."""
    size, formula = product(*factors)
    return SourcedBytes(name, size, source, formula)


def element_bytes(run: Run) -> int:
    """Bytes of one element of the hidden states."""
    return 4 if run.precision == "fp32" else 2


def of_chip(table: Mapping[str, T], run: Run) -> T:
    """The row of a run's card; an H100's where it has none, which a note says."""
    return table.get(run.compute_capability, table[H100])


def step_tokens(run: Run) -> int:
    """Tokens of a step, at most."""
    return int(run.options["max_num_batched_tokens"])


def step_sequences(run: Run) -> int:
    """Sequences of a step, at most."""
    return int(run.options["max_num_seqs"])
