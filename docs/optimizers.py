"""Writes optimizers.md: what each optimizer keeps, who has it, and whose time it takes.

python docs/optimizers.py
"""

from __future__ import annotations

from pathlib import Path

from gpu_mem_calculator.timing.curves.optimizers import timed_step
from gpu_mem_calculator.training.engines import engines
from gpu_mem_calculator.training.optimizers import OPTIMIZERS, Optimizer, state_bytes

TARGET = Path(__file__).with_name("optimizers.md")
SAMPLE = 1024 * 1024  # parameters of a matrix whose states are counted
HEAD = """# Optimizers

`training.optimizer` takes each of these names, and each word of transformers' `optim`.
`training.optimizer_implementation` chooses among the implementations; the first is what torch
chooses on a GPU. Bytes are those of the states of one parameter, with weights in fp32 and in 16
bits; they do not count fp32 master weights, which an engine may keep besides. The column of time
says whose measured step `plan` takes: where it is another optimizer's, the plan says so.

    gpu-mem-calc quick llama3.2-1b --gpu 4090 --optimizer adamw_8bit

"""
COLUMNS = (
    *("name", "optimizer", "bytes, fp32", "bytes, 16 bits", "implementations"),
    *("transformers' `optim`", "engines", "measured or traced", "time"),
)


def _bytes(row: Optimizer, bits: int) -> str:
    if row.factored:
        return "a row and a column of a matrix"
    return f"{int(state_bytes(row, SAMPLE, bits)) / SAMPLE:.3g}" + " (paged)" * row.paged


def _implementations(row: Optimizer) -> tuple[str, ...]:
    """The default first."""
    return tuple(sorted(row.implementations, key=lambda kind: kind != row.default))


def _time(name: str, row: Optimizer) -> str:
    """Whose step it takes, for each of its implementations."""
    steps = [(name, kind) for kind in _implementations(row) or ("",)]
    return ", ".join(
        dict.fromkeys(
            "its own" if timed_step(step)[0] == name else f"that of `{timed_step(step)[0]}`"
            for step in steps
        )
    )


def page() -> str:
    """The page."""
    lines = [f"| {' | '.join(COLUMNS)} |\n", f"|{'---|' * len(COLUMNS)}\n"]
    for name, row in OPTIMIZERS.items():
        having = [one.title for one in engines().values() if name in one.optimizers]
        cells = (
            f"`{name}`",
            row.title,
            _bytes(row, 32),
            _bytes(row, 16),
            ", ".join(f"`{kind}`" for kind in _implementations(row)) or "one",
            ", ".join(f"`{word}`" for word in row.optim),
            ", ".join(having),
            "yes" if row.measured else "from source",
            _time(name, row),
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
