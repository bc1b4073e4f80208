"""A dozen whole ledgers as text, so that a changed formula is a readable diff.

`python -m tests.golden.test_ledgers` writes them anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.ledger import GPU
from tests.properties.test_engines import RUNS

HERE = Path(__file__).parent
GOLDEN = {
    **{
        name: RUNS[name]
        for name in (
            "ddp",
            "ddp-accumulating",
            "ddp-full-recompute",
            "zero1",
            "zero2",
            "zero3-offload",
            "fsdp",
            "megatron",
            "megatron-pipeline",
            "megatron-deepspeed",
        )
    },
    "moe": {**RUNS["ddp"], "model": {"name": "mixtral-8x7b", "num_layers": 2}},
    "lora": {
        **RUNS["ddp"],
        "training": {
            "batch_size": 2,
            "seq_len": 512,
            "precision": "bf16_pure",
            "autocast": True,
            "lora": {"r": 8},
            "quantization": "nf4",
        },
    },
}


def text(run: dict[str, Any]) -> str:
    """Every instant's height, then every entry with its bytes and when it is alive."""
    found = full_estimate(run)
    ledger = found.ledger
    lines = [
        f"{int(ledger.at(i)):>16,}  {i.phase:9} {i.name}" for i in ledger.instants if i.present
    ]
    lines.append("")
    for entry in sorted(ledger.entries, key=lambda e: (e.place, e.kind, -int(e.bytes), e.name)):
        alive = " ".join(f"{name}×{int(n)}" for name, n in entry.live.items() if n)
        place = "" if entry.place == GPU else f" [{entry.place}]"
        lines.append(f"{int(entry.bytes):>16,}  {entry.kind:8}{entry.name}{place}: {alive}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_ledger_is_as_it_was(name: str) -> None:
    """A formula that changes shows here, entry by entry."""
    assert text(GOLDEN[name]) == (HERE / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for case, run in GOLDEN.items():
        (HERE / f"{case}.txt").write_text(text(run), encoding="utf-8")
    sys.exit(0)
