"""The four numbers that are never mixed up, each with its name and what it means, and the rest."""

from __future__ import annotations

from collections.abc import Iterator

from .lines import BOLD, DIM, Line, gib, line

NAME, FIGURE = 14, 9
Number = tuple[str, int | None, str]  # its name, bytes, what it means


def four_numbers(
    allocated: int, reserved: int | None, needs: int | None, device: int | None, outside: int
) -> list[Number]:
    """The four, in words; None is what was not replayed."""
    beside = gib(outside, 2)
    whole = gib((allocated if needs is None else needs) + outside, 2)
    return [
        ("allocated", allocated, "the most that tensors take at once in a step"),
        ("reserved", reserved, "what torch takes for it on a GPU with room"),
        ("torch needs", needs, f"the least it gets by with; {whole} with CUDA's {beside}"),
        ("nvidia-smi", device, f"reserved and CUDA's {beside}, on a GPU with room"),
    ]


def numbers_table(numbers: list[Number], head: str = "GiB per GPU") -> Iterator[Line]:
    """A row for each number that there is."""
    yield line(head, BOLD)
    for name, value, says in numbers:
        if value is not None:
            figure = gib(value, 2).rjust(FIGURE)
            yield [(f"  {name:<{NAME}}{figure}", ""), (f"  {says}", DIM)]
