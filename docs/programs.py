"""Writes the picture and the tables of programs.md, from estimates.

python docs/programs.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.ledger import GPU
from gpu_mem_calculator.report.svg import svg_text
from gpu_mem_calculator.tools.translation.arguments import FREE, MEMORY, REFUSED, argument_table
from gpu_mem_calculator.tools.translation.tools import TOOLS

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "programs.md", ROOT / "docs" / "programs.svg"
GIB = 2**30
MODEL, LENGTH, BATCH = "llama3.2-1b", 1024, 4
LOAD, DATA = {"dtype": "float32"}, {"seq_len": LENGTH}
TRAINER: dict[str, Any] = {"per_device_train_batch_size": BATCH, "bf16": True}
TRL = {"per_device_train_batch_size": BATCH}
LORA = {"r": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16"}
Program = dict[str, Any]


def program(tool: str, args: Mapping[str, Any], **rest: Any) -> Program:
    """A program section."""
    return {"tool": tool, "args": dict(args), "load": LOAD, "data": DATA, **rest}


PROGRAMS: Mapping[str, Program] = {
    "Trainer": program("transformers.Trainer", TRAINER),
    "Trainer, gradient_checkpointing": program(
        "transformers.Trainer", {**TRAINER, "gradient_checkpointing": True}
    ),
    "Trainer, use_liger_kernel": program(
        "transformers.Trainer", {**TRAINER, "use_liger_kernel": True}
    ),
    "Trainer, torch_compile": program("transformers.Trainer", {**TRAINER, "torch_compile": True}),
    "Trainer, adamw_bnb_8bit": program(
        "transformers.Trainer", {**TRAINER, "optim": "adamw_bnb_8bit"}
    ),
    "Lightning, bf16-mixed": program("lightning", {"precision": "bf16-mixed", "batch_size": BATCH}),
    "TRL SFT": program("trl.SFTTrainer", TRL),
    "TRL SFT, QLoRA": program(
        "trl.SFTTrainer", TRL, load={"dtype": "bfloat16"}, peft=LORA, quantization=NF4
    ),
    "TRL DPO": program("trl.DPOTrainer", TRL, data={**DATA, "prompt": 512}),
    "TRL GRPO, 512 + 512 tokens": program(
        "trl.GRPOTrainer",
        {"per_device_train_batch_size": 8, "max_completion_length": 512},
        data={"prompt": 512},
    ),
}
# Kinds of memory in the picture, in order, with a colour for light and dark pages.
KINDS = {
    "weights": (("param",), "#4c78a8"),
    "gradients": (("grad",), "#f58518"),
    "optimizer states": (("optim",), "#54a24b"),
    "activations and logits": (("act",), "#b279a2"),
    "other": (("cache", "temp", "comm", "runtime"), "#9d9d9d"),
}


STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#222}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
)


class Bar(Struct, frozen=True):
    """A program's peak in bytes, the instant at which it is reached, and its parts."""

    name: str
    peak: int
    instant: str
    parts: tuple[int, ...]


def bar(name: str, section: Program) -> Bar:
    """The estimate of one program on one H200."""
    run = {"model": {"name": MODEL}, "program": section, "hardware": {"gpu": "h200"}}
    estimate = full_estimate(run)
    ledger = estimate.ledger
    instant = ledger.peak_instant()
    sizes: Counter[str] = Counter()
    for entry in ledger.entries:
        if entry.place == GPU:
            sizes[entry.kind] += int(entry.at(instant.name))
    parts = tuple(sum(sizes[kind] for kind in kinds) for kinds, _ in KINDS.values())
    return Bar(name, estimate.result.allocated_bytes, instant.title, parts)


def picture(bars: Iterable[Bar]) -> str:
    """A horizontal bar for each program."""
    bars = list(bars)
    left, wide, high = 230, 520, 26
    most = max(one.peak for one in bars)
    rows, y = [], 34
    x = left
    for name, (_, colour) in KINDS.items():
        rows.append(f'<rect x="{x}" y="8" width="11" height="11" fill="{colour}"/>')
        rows.append(svg_text(x + 15, 18, name))
        x += 30 + 7 * len(name)
    for one in bars:
        rows.append(svg_text(left - 8, y + 15, one.name, anchor="end"))
        x = left
        for size, (_, colour) in zip(one.parts, KINDS.values(), strict=True):
            width = round(wide * size / most, 1)
            rows.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width}" height="{high - 6}" fill="{colour}"/>'
            )
            x += width
        rows.append(svg_text(f"{x + 6:.1f}", y + 15, f"{one.peak / GIB:.1f} GiB"))
        y += high
    box = f"0 0 {left + wide + 90} {y + 6}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">'
    title = "<title>Peak memory of the same model under different programs, by kind</title>"
    return "\n".join((head, title, STYLE, *rows, "</svg>", ""))


def peaks(bars: Iterable[Bar]) -> str:
    """The table below the picture."""
    lines = ["| program | peak | reached |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.peak / GIB:.2f} GiB | {one.instant} |" for one in bars]
    return "\n".join(lines)


def tools() -> str:
    """Every tool: its version, and how many of its arguments have which effect."""
    lines = [
        "| `program.tool` | read at | arguments | change memory | no effect | only the default |",
        "|---|---|---|---|---|---|",
    ]
    for name, tool in TOOLS.items():
        effects = Counter(row.effect for row in argument_table(tool.arguments).values())
        cells = (effects.total(), effects[MEMORY], effects[FREE], effects[REFUSED])
        numbers = " | ".join(map(str, cells))
        lines.append(f"| `{name}` | {tool.package} {tool.version} | {numbers} |")
    return "\n".join(lines)


def with_block(text: str, name: str, block: str) -> str:
    """The page with a generated block."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)"
    assert re.search(pattern, text, re.S), name
    return re.sub(pattern, lambda m: f"{m[1]}{block}\n{m[2]}", text, flags=re.S)


def write() -> None:
    """Write the picture and the page."""
    bars = [bar(name, section) for name, section in PROGRAMS.items()]
    PICTURE.write_text(picture(bars), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    text = with_block(text, "peaks", peaks(bars))
    PAGE.write_text(with_block(text, "tools", tools()), encoding="utf-8")


if __name__ == "__main__":
    write()
