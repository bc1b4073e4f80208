"""The four numbers of a report, each with its name and meaning, and the table they are in."""

from __future__ import annotations

from collections.abc import Iterator

from ..cuda.runtimes import CUDA, in_words_of
from .lines import BOLD, DIM, Line, gib, line

NAME, FIGURE = 14, 9
Number = tuple[str, int | None, str]  # name, bytes, meaning


def four_numbers(
    allocated: int,
    reserved: int | None,
    needs: int | None,
    device: int | None,
    margin: int | None,
    outside: int,
    runtime: str = CUDA,
) -> list[Number]:
    """Allocated, reserved, needs and device bytes; None where they were not replayed."""
    outside_text = in_words_of(runtime, f"CUDA {gib(outside, 2)}")
    beside = f"margin {gib(margin or 0, 2)}, {outside_text}"
    return [
        ("allocated", allocated, "the most that tensors take at once in a step"),
        ("reserved", reserved, "what torch reserves on a larger GPU"),
        ("torch needs", needs, f"the least it survives in; {beside}"),
        (
            in_words_of(runtime, "nvidia-smi"),
            device,
            f"reserved, as far as the card allows, and {outside_text}",
        ),
    ]


def numbers_table(numbers: list[Number], head: str = "GiB per GPU") -> Iterator[Line]:
    """A heading, and a row for each number that is not None."""
    yield line(head, BOLD)
    for name, value, says in numbers:
        if value is not None:
            figure = gib(value, 2).rjust(FIGURE)
            yield [(f"  {name:<{NAME}}{figure}", ""), (f"  {says}", DIM)]
