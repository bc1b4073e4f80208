"""The record of a small module, event by event, so that a changed recording is a readable diff.

`python -m tests.golden.test_record` writes it anew.
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from gpu_mem_calculator.lab.trace.record import record  # noqa: E402
from gpu_mem_calculator.run.record import ModuleRecord, read_record  # noqa: E402
from gpu_mem_calculator.runfile.resolve.resolve import resolve  # noqa: E402
from gpu_mem_calculator.tools.read import read  # noqa: E402
from tests.conftest import small_run  # noqa: E402

HERE = Path(__file__).parent
PRECISIONS = ("fp32", "bf16_mixed")
EVENTS = ("forward", "backward", "drops", "hooks", "back_calls")


class Block(torch.nn.Module):  # type: ignore[misc]
    """A norm, two linears and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64, bias=False)

    def forward(self, x: Any) -> Any:
        """The branch added to its input."""
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Language(torch.nn.Module):  # type: ignore[misc]
    """An embedding, three blocks, and a head that reads the embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(96, 64)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.norm = torch.nn.LayerNorm(64)
        self.gain = torch.nn.Parameter(torch.ones(64))
        self.scale = torch.nn.Parameter(torch.ones(64), requires_grad=False)
        self.register_buffer("places", torch.zeros(32, 64))

    def forward(self, ids: Any) -> Any:
        """The loss of the next token."""
        x = self.table(ids) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x) * self.scale * self.gain
        logits = torch.nn.functional.linear(x, self.table.weight)
        return torch.nn.functional.cross_entropy(logits.view(-1, 96), ids.view(-1))


def recorded(precision: str) -> ModuleRecord:
    """The record of the module with four samples of 32 tokens."""
    run = small_run(gpus=1, training={"precision": precision})
    del run["training"]["batch_size"], run["training"]["seq_len"]
    build = lambda: (Language(), (torch.randint(0, 96, (4, 32)),))  # noqa: E731
    return record(build, resolve(read(run).file), "language")


def text(module: ModuleRecord) -> str:
    """The record, a field on each line."""
    lines: list[str] = []
    for key, value in msgspec.to_builtins(module).items():
        parts = value if key == "layers" else [value] if key in ("before", "after") else []
        lines += [] if parts else [f"{key}: {value}"]
        for number, part in enumerate(parts):
            for name, inner in part.items():
                pairs = inner.items() if isinstance(inner, dict) else [("", inner)]
                lines += [f"{key} {number} {name} {field}: {one}" for field, one in pairs]
    return "\n".join(lines) + "\n"


def in_any_order(lines: str) -> str:
    """The lines, with the words of each sorted; of events, which number the tensors in their order,
    only how many words there are.
    """
    found = []
    for line in lines.splitlines():
        name, _, value = line.partition(": ")
        words = sorted(re.findall(r"[-\w.]+", value))
        found.append(f"{name}: {len(words) if name.split()[-1] in EVENTS else ' '.join(words)}")
    return "\n".join(found)


@pytest.fixture(scope="module")
def records() -> dict[str, ModuleRecord]:
    """The module in two arithmetics."""
    return {precision: recorded(precision) for precision in PRECISIONS}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_record_is_as_it_was(records: dict[str, ModuleRecord], precision: str) -> None:
    """Tensors, events, weights and what forward keeps.

    Torch casts an operation's arguments in the order in which its C++ compiler evaluates them,
    which is another one on other processors.
    """
    module = records[precision]
    now, before = text(module), (HERE / f"record-{precision}.txt").read_text(encoding="utf-8")
    if precision == "bf16_mixed" and platform.machine() != "x86_64":
        now, before = in_any_order(now), in_any_order(before)
    assert now == before
    assert read_record(msgspec.to_builtins(module)) == module


def test_a_record_has_the_modules_figures(records: dict[str, ModuleRecord]) -> None:
    """Four samples of 32 tokens, 64 wide; three equal blocks; a table that two parts read."""
    module = records["fp32"]
    assert (module.batch, module.tokens, module.width) == (4, 32, 64)
    assert (len(module.layers), module.order, module.prefix) == (1, (0, 0, 0), "blocks")
    assert module.frozen == (("scale", (64,), 32),)
    assert module.buffers == (("places", (32, 64), 32),)
    assert (module.batch_bytes, module.biases) == (4 * 32 * 8, 1)
    weights = [name for part in (module.before, module.after) for name, _ in part.weights]
    assert sorted(weights) == ["gain", "norm.bias", "norm.weight", "table.weight"]


if __name__ == "__main__":
    for case in PRECISIONS:
        (HERE / f"record-{case}.txt").write_text(text(recorded(case)), encoding="utf-8")
    sys.exit(0)
