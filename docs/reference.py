"""Writes run-file.md: example run files, and every key with its default for each engine.

python docs/reference.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_mem_calculator.run.engine import Engine
from gpu_mem_calculator.runfile.config import INNER
from gpu_mem_calculator.runfile.keys.keys import defaults, rows
from gpu_mem_calculator.runfile.read import SECTIONS, key_types, rule
from gpu_mem_calculator.serving import ALIASES as SERVERS
from gpu_mem_calculator.serving import servers
from gpu_mem_calculator.training.engines import aliases, engines

TARGET = Path(__file__).with_name("run-file.md")
CONFIGS = TARGET.parents[1] / "configs"
EXAMPLES = {
    "llama3_8b_qlora": "QLoRA on one 24 GB card, with the settings that most people use",
    "llama3_8b_sft": "TRL's SFTTrainer in its own arguments, QLoRA on one card",
    "llama3_8b_fsdp": "All weights of an 8B model with FSDP on 8 GPUs",
    "llama3_70b_megatron": "A 70B model with Megatron-LM on 8 nodes of 8 GPUs",
    "deepseek_v3_vllm": "A vLLM server for DeepSeek-V3 on 8 GPUs",
}
OTHERS = {
    "llama2_7b_deepspeed": "DeepSpeed ZeRO-3 with the optimizer on the CPU",
    "pytorch_ddp_example": "DDP on 4 GPUs, with the model's sizes as plain numbers",
    "gpt3_175b_megatron": "GPT-3 175B with Megatron-LM on 1,024 GPUs",
}


def shown(value: Any) -> str:
    """A default as it is written in JSON."""
    return (
        str(value).lower() if isinstance(value, bool) else "unset" if value is None else f"{value}"
    )


def said(kind: Any) -> str:
    """What a key may be; a list of numbers is that."""
    return rule(kind) or "a list of numbers"


def meaning(path: str) -> str:
    """What a key means, as a cell of a table: a bar would end the cell."""
    return rows()[path].meaning.replace("|", "\\|")


def section_table(name: str) -> list[str]:
    """Key, what it may be, its default and what it means."""
    lines = ["| key | may be | default | |", "|---|---|---|---|"]
    for key, kind in key_types(SECTIONS[name]).items():
        path = f"{name}.{key}"
        default = shown(defaults()[path]) if path in defaults() else ""
        lines.append(f"| `{key}` | {said(kind)} | {default} | {meaning(path)} |")
    return lines


def option_table(section: str, first: str, every: Mapping[str, Engine], own: str) -> list[str]:
    """Each key of a section but `own`, and its default in the engines that have it."""
    lines = [f"| {first} | may be | " + " | ".join(f"`{n}`" for n in every) + " | |"]
    lines.append("|---|---|" + "---|" * len(every) + "---|")
    for key, kind in key_types(SECTIONS[section]).items():
        cells = [shown(e.options[key]) if key in e.options else "" for e in every.values()]
        if key != own:
            row = [f"`{key}`", said(kind), *cells, meaning(f"{section}.{key}")]
            lines.append(f"| {' | '.join(row)} |")
    return lines


def inner_table(name: str) -> list[str]:
    """The keys of an object in the training section."""
    lines = ["| key | may be | default | |", "|---|---|---|---|"]
    plain = INNER[name]()
    for key, kind in key_types(INNER[name]).items():
        default, last = shown(getattr(plain, key)), meaning(f"training.{name}.{key}")
        lines.append(f"| `{key}` | {said(kind)} | {default} | {last} |")
    return lines


def examples() -> list[str]:
    """The run files to copy, each whole, and links to the others."""
    parts = []
    for name, title in EXAMPLES.items():
        text = (CONFIGS / f"{name}.json").read_text("utf-8").rstrip()
        link = f"[`configs/{name}.json`](../configs/{name}.json)"
        parts += [f"### {title}", "", f"{link}:", "", "```json", text, "```", ""]
    links = [f"- [`{name}.json`](../configs/{name}.json): {what}" for name, what in OTHERS.items()]
    return [*parts, "More in `configs/`:", "", *links]


def page() -> str:
    """The whole page."""
    spellings = ", ".join(f"`{a}` = `{n}`" for a, n in aliases().items())
    parts = [
        "# The run file",
        "",
        "A run file describes one run: the model, how it is trained or served, and the hardware.",
        "It is JSON, YAML or TOML. Only the model is required.",
        "",
        "    gpu-mem-calc validate run.json              # every mistake, one sentence each",
        "    gpu-mem-calc calculate run.json",
        "    gpu-mem-calc calculate run.json --seq-len 8k --set training.lora.r=32",
        "    gpu-mem-calc quick llama3.1-8b --qlora --gpu 4090 --save-run run.json",
        "",
        "A key that is left out has the default below, or the default of the framework at the",
        "version that is modelled. An unknown key, a value out of range, or an option that the",
        "engine does not have is refused with one sentence. `gpu-mem-calc schema` prints a JSON",
        "Schema for editors. `docs/reference.py` writes this page.",
        "",
        "## Examples",
        "",
        *examples(),
        "",
        "## model",
        "",
        *section_table("model"),
        "",
        "## training",
        "",
        *section_table("training"),
        "",
        "### training.lora",
        "",
        *inner_table("lora"),
        "",
        "### training.generation",
        "",
        *inner_table("generation"),
        "",
        "### training.evaluation",
        "",
        *inner_table("evaluation"),
        "",
        "### training.sampling",
        "",
        *inner_table("sampling"),
        "",
        "## parallelism",
        "",
        *section_table("parallelism"),
        "",
        "## engine",
        "",
        f"`type` is one of {', '.join(f'`{n}`' for n in engines())} (default `pytorch_ddp`);",
        f"other spellings: {spellings}.",
        "The table has each option's default. An engine with an empty cell refuses the option.",
        "",
        *option_table("engine", "option", engines(), "type"),
        "",
        "## inference",
        "",
        "This section replaces training, parallelism and engine: see [serving](serving.md) and",
        "[inference with transformers](inference.md). `engine` is one of",
        f"{', '.join(f'`{n}`' for n in servers())} (default `transformers`); other spellings:",
        f"{', '.join(f'`{a}` = `{n}`' for a, n in SERVERS.items())}.",
        "The table has each key's default. An engine with an empty cell refuses the key.",
        "",
        *option_table("inference", "key", servers(), "engine"),
        "",
        "## hardware",
        "",
        *section_table("hardware"),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
