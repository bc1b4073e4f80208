"""Writes run-file.md: every key of a run file, with its default for each engine.

python docs/reference.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_mem_calculator.core.models import LoraConfig
from gpu_mem_calculator.core.runfile import SECTIONS, hints, rule
from gpu_mem_calculator.engines import ALIASES, engines
from gpu_mem_calculator.families.plain import DEFAULTS as PLAIN
from gpu_mem_calculator.serving import ALIASES as SERVERS
from gpu_mem_calculator.serving import servers

TARGET = Path(__file__).with_name("run-file.md")

MEANING = {
    "model.name": "a preset, a hub id of one, or a path to a config.json or its folder",
    "model.config": "a Hugging Face config.json, as it is",
    "model.num_parameters": "wins over the architecture's own count, with a warning",
    "model.largest_layer_params": "read, and compared: the architecture's own is what counts",
    "training.batch_size": "micro-batch of one GPU",
    "training.seq_len": "default: the model's max_seq_len",
    "training.gradient_accumulation_steps": "also the pipeline's micro-batches",
    "training.dtype": "fp32, fp16 or bf16; X alone means X_mixed",
    "training.precision": "mixed is what the engine's users get; pure is 16 bits throughout",
    "training.autocast": "torch.autocast around a pure 16-bit model (PEFT runs)",
    "training.optimizer_implementation": "default: the engine's own",
    "training.activation_checkpointing": "or 0 none, 1 selective, 2 and 3 full on a half and on "
    "three quarters of the layers, 4 full",
    "training.gradient_clipping": "0 turns it off",
    "training.quantization": "of a frozen base; needs lora",
    "inference.batch_size": "sequences at once",
    "inference.prompt_len": "tokens of each prompt",
    "inference.new_tokens": "generated behind it; 0 is one forward pass",
    "inference.max_seq_len": "prompt and new tokens together stay within it",
    "inference.dtype": "fp32, fp16 or bf16",
    "hardware.gpu": "a name from `gpu-mem-calc gpus`, short where that is unique",
    "hardware.gpu_memory_gb": "as marketed; taken as the least that a card of that size reports",
    "hardware.gpu_memory_bytes": "what the driver reports",
    "hardware.available_memory_bytes": "what is free before the run starts",
    "hardware.interconnect": "a name or alias from the link table; no effect on memory",
    "engine.cpu_offload": "shards, gradients and the optimizer in pinned host memory",
    "engine.allgather_bucket_size": "has no effect on memory: parameters are gathered in place",
}
DEFAULT = {
    "training.batch_size": "1", "training.gradient_accumulation_steps": "1",
    "training.precision": "bf16_mixed", "training.optimizer": "adamw",
    "training.activation_checkpointing": "none", "training.attention": "sdpa",
    "training.gradient_clipping": "1.0", "training.double_quant": "true",
    "hardware.gpu_memory_gb": "80", "hardware.gpus_per_node": "8, or all where fewer",
    **{f"model.{key}": shown for key, value in PLAIN.items()
       if (shown := str(value).lower())},
}  # fmt: skip


def shown(value: Any) -> str:
    """A default as it is written in JSON."""
    return (
        str(value).lower() if isinstance(value, bool) else "unset" if value is None else f"{value}"
    )


def section_table(name: str) -> list[str]:
    """Key, what it may be, its default and what it means."""
    lines = ["| key | may be | default | |", "|---|---|---|---|"]
    for key, kind in hints(SECTIONS[name]).items():
        path = f"{name}.{key}"
        lines.append(
            f"| `{key}` | {rule(kind)} | {DEFAULT.get(path, '')} | {MEANING.get(path, '')} |"
        )
    return lines


def engine_table() -> list[str]:
    """Each option, and its default in the engines that have it."""
    every = engines()
    lines = ["| option | may be | " + " | ".join(f"`{n}`" for n in every) + " |"]
    lines.append("|---|---|" + "---|" * len(every))
    for key, kind in hints(SECTIONS["engine"]).items():
        cells = [shown(e.options[key]) if key in e.options else "" for e in every.values()]
        if key != "type":
            note = MEANING.get(f"engine.{key}")
            lines.append(f"| `{key}` | {rule(kind)}{f' ({note})' if note else ''} | "
                         + " | ".join(cells) + " |")  # fmt: skip
    return lines


def server_table() -> list[str]:
    """Each key of inference, and its default in the engines that have it."""
    every = servers()
    lines = ["| key | may be | " + " | ".join(f"`{n}`" for n in every) + " | |"]
    lines.append("|---|---|" + "---|" * len(every) + "---|")
    for key, kind in hints(SECTIONS["inference"]).items():
        cells = [shown(e.options[key]) if key in e.options else "" for e in every.values()]
        if key != "engine":
            lines.append(f"| `{key}` | {rule(kind)} | " + " | ".join(cells)
                         + f" | {MEANING.get(f'inference.{key}', '')} |")  # fmt: skip
    return lines


def lora_table() -> list[str]:
    """The keys of training.lora."""
    lines = ["| key | may be | default |", "|---|---|---|"]
    plain = LoraConfig()
    for key, kind in hints(LoraConfig).items():
        lines.append(f"| `{key}` | {rule(kind)} | {shown(getattr(plain, key))} |")
    return lines


def page() -> str:
    """The whole page."""
    spellings = ", ".join(f"`{a}` = `{n}`" for a, n in ALIASES.items())
    parts = [
        "# The run file", "",
        "JSON, YAML and TOML read the same. A key that is left out takes the default below, or",
        "that of the framework at the version that is modelled; an unknown key, a value that is",
        "out of range, or an option that the engine does not have is refused with a sentence.",
        "`gpu-mem-calc schema` prints a JSON Schema for editors. This page is written by",
        "`docs/reference.py`.", "",
        "## model", "", *section_table("model"), "",
        "## training", "", *section_table("training"), "",
        "### training.lora", "", *lora_table(), "",
        "## parallelism", "", *section_table("parallelism"), "",
        "`data_parallel_size` is what is left of `num_gpus` where it is not given.", "",
        "## engine", "",
        f"`type` is one of {', '.join(f'`{n}`' for n in engines())} (default `pytorch_ddp`);",
        f"other spellings: {spellings}.",
        "Each option's default, in the engines that have it (an empty cell: refused):", "",
        *engine_table(), "",
        "## inference", "",
        "Instead of training, parallelism and engine: see [inference](inference.md). `engine` is",
        f"one of {', '.join(f'`{n}`' for n in servers())} (default `transformers`); other",
        f"spellings: {', '.join(f'`{a}` = `{n}`' for a, n in SERVERS.items())}.",
        "Each key's default, in the engines that have it (an empty cell: refused):", "",
        *server_table(), "",
        "## hardware", "", *section_table("hardware"), "",
    ]  # fmt: skip
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
