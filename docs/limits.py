"""Writes limits.md and the limitations of README.md: what is refused, and what is not modelled.

Every line is what the code answers today: a set-up that it no longer refuses, or estimates without
the limit, makes this script fail.

python docs/limits.py
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.runfile.text.errors import InputError

ROOT = Path(__file__).parents[1]
TARGET, README = ROOT / "docs" / "limits.md", ROOT / "README.md"
SOURCE = ROOT / "src" / "gpu_mem_calculator"
BEGIN, END = "<!-- limits -->", "<!-- end limits -->"
QLORA = {"lora": {"r": 16}, "quantization": "nf4", "precision": "bf16_pure"}
LLAMA = "llama3.2-1b"
Run = dict[str, Any]


def run(model: str = LLAMA, engine: str = "pytorch_ddp", gpus: int = 2, **sections: Any) -> Run:
    """A run file of a model; `training`, `parallelism` and `options` of the engine may be given."""
    options = sections.pop("options", {})
    place = {"hardware": {"gpu": "h100-80gb-sxm", "num_gpus": gpus}}
    return {"model": {"name": model}, "engine": {"type": engine, **options}, **place, **sections}


# What is refused: a title, and run files of which each is refused.
REFUSED: dict[str, tuple[Run, ...]] = {
    "QLoRA under FSDP, DeepSpeed and Megatron": tuple(
        run(engine=name, training=QLORA) for name in ("fsdp", "deepspeed", "megatron_lm")
    ),
    "LoRA under Megatron-LM": (run(engine="megatron_lm", training={"lora": {"r": 8}}),),
    "tensor parallelism of PyTorch's DDP and FSDP, and of DeepSpeed": tuple(
        run(engine=name, parallelism={"tensor_parallel_size": 2})
        for name in ("pytorch_ddp", "fsdp", "deepspeed")
    ),
    "context parallelism outside Megatron-LM": tuple(
        run(engine=name, parallelism={"context_parallel_size": 2})
        for name in ("pytorch_ddp", "fsdp", "deepspeed", "megatron_deepspeed")
    ),
    "the losses `liger_fused` and `cut` under ZeRO-3": tuple(
        run(engine="deepspeed", options={"zero_stage": 3}, training={"loss": loss})
        for loss in ("liger_fused", "cut")
    ),
    "training of encoders, encoder-decoders and most state-space models": tuple(
        run(model, gpus=1) for model in ("bert-base", "t5-small", "mamba-130m", "falcon-h1-0.5b")
    ),
    "fp8 training": (run(training={"precision": "fp8"}),),
    "GaLore, APOLLO and Adam-mini": tuple(
        run(training={"optimizer": name}) for name in ("galore_adamw", "apollo_adamw", "adam_mini")
    ),
}
# What is estimated without something that is named: a title, a run file, and the key of its limit.
LIMITED: dict[str, tuple[Run, str]] = {
    "images of vision models in training": (run("qwen2-vl-2b", gpus=1), "images"),
    "adapters under FSDP 1, which takes less with PEFT's wrap policy": (
        run(
            engine="fsdp",
            training={"lora": {"r": 8}, "precision": "bf16_mixed"},
            options={"fsdp_version": 1, "use_orig_params": True},
        ),
        "adapters under FSDP 1",
    ),
    "buffers that inductor keeps where a compiled model is recomputed": (
        run(gpus=1, training={"compile": True, "activation_checkpointing": "full"}),
        "training.compile",
    ),
}
HEAD = """\
# What is not modelled

A set-up that cannot be estimated is refused in one sentence. An option of a tool that is known and
not modelled is named: the run is estimated without it, with a bound where there is one, and where
it could decide, the verdict is `cannot tell`. All lists come from the code.

## Refused set-ups
"""
OPTIONS = """\
## Options of tools that are not modelled

"less": with it a run takes less than is estimated, "more": more, "either": one or the other."""


def refusal(title: str, one: Run) -> str:
    """The sentence with which a run is refused."""
    try:
        estimate(one, replay=False)
    except InputError as error:
        return str(error.problems[0])
    raise AssertionError(f"{title}: it is estimated; take it out of docs/limits.py")


def limit(title: str, one: Run, key: str) -> str:
    """The sentence of a run's limit."""
    found = [one for one in estimate(one, replay=False).limits if one.key == key]
    assert found, f"{title}: it has no such limit; take it out of docs/limits.py"
    return str(found[0].why)


def tables() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Every table of a tool with options that are not modelled."""
    for path in sorted(SOURCE.glob("*/*/*.toml")):
        rows = tomllib.loads(path.read_text("utf-8")).get("refused")
        if isinstance(rows, list):
            name = path.stem.replace("_", " ")
            own = "" if path.stem == "arguments" else f", {name}"
            yield f"{path.parent.name}{own}", rows


def option_lines() -> Iterator[str]:
    """The options of each tool, with the reason."""
    for title, rows in tables():
        yield from ("", f"### {title}", "", "| option | could take | why |", "|---|---|---|")
        for row in rows:
            names = ", ".join(f"`{name}`" for name in row.get("names", ()))
            why = str(row.get("why", "")).replace("|", "\\|")
            yield f"| {names} | {row.get('could', 'either')} | {why} |"


def page() -> str:
    """The whole page."""
    lines = [HEAD, "| set-up | sentence |", "|---|---|"]
    for title, runs in REFUSED.items():
        sentences = [refusal(title, one) for one in runs]
        lines.append(f"| {title} | {sentences[0]} |")
    lines += ["", "## Estimated with a limit", "", "| what | why |", "|---|---|"]
    lines += [f"| {title} | {limit(title, *one)} |" for title, one in LIMITED.items()]
    return "\n".join([*lines, "", OPTIONS, *option_lines(), ""])


def readme() -> str:
    """README.md with its generated lines."""
    count = sum(len(row.get("names", ())) for _, rows in tables() for row in rows)
    named = f"over {count // 100 * 100:,} options of tools"
    texts = (
        f"- **Refused** with a sentence: {'; '.join(REFUSED)}.",
        f"- **Estimated without it**, and named: {'; '.join(LIMITED)}; {named}. Each has a bound "
        "where one is known; where it could decide, the verdict is `cannot tell` ([what is not "
        "modelled](docs/limits.md)).",
    )
    lines = [line for text in texts for line in wrap(text, 120, subsequent_indent="  ")]
    text = README.read_text("utf-8")
    block = "\n".join([BEGIN, *lines, END])
    return re.sub(f"{BEGIN}.*?{END}", lambda _: block, text, flags=re.DOTALL)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
