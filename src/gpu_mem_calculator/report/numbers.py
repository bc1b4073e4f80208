"""The four numbers of a report, each with its name and meaning, and the table they are in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..run.cuda.runtimes import CUDA, in_words_of
from .lines import BOLD, DIM, Line, gib, line

if TYPE_CHECKING:
    from ..estimates.result import MemoryResult
    from ..lab.trace.run import RunTrace

NAME, FIGURE = 14, 9
Number = tuple[str, int | None, str]  # name, bytes, meaning


def four_numbers(found: MemoryResult | RunTrace, outside: int, runtime: str = CUDA) -> list[Number]:
    """Allocated, reserved, needs and device bytes, and the total that the card must have, with what
    is `outside` torch; None where they were not replayed.
    """
    needs, margin = found.needs_bytes, found.margin_bytes or 0
    total = None if needs is None else needs + margin + outside
    beside = in_words_of(runtime, f"+ {gib(margin, 2)} margin + {gib(outside, 2)} CUDA")
    smi = in_words_of(runtime, "nvidia-smi")
    return [
        ("allocated", found.allocated_bytes, "peak of live tensors (torch's max_memory_allocated)"),
        ("reserved", found.reserved_bytes, "by PyTorch's cache when memory is plentiful"),
        ("torch needs", needs, "minimum for PyTorch, fragmentation included"),
        ("total", total, f"{beside}; compare with the card"),
        (smi, found.device_bytes, "what it shows: reserved + outside PyTorch"),
    ]


def numbers_table(numbers: list[Number], head: str = "GiB per GPU") -> Iterator[Line]:
    """A heading, and a row for each number that is not None."""
    yield line(head, BOLD)
    for name, value, says in numbers:
        if value is not None:
            figure = gib(value, 2).rjust(FIGURE)
            yield [(f"  {name:<{NAME}}{figure}", ""), (f"  {says}", DIM)]
