"""Writes formats-deepspeed.md: what becomes of each key of DeepSpeed's JSON, with real output.

python docs/formats_deepspeed.py
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.tools.deepspeed import keys
from gpu_mem_calculator.tools.deepspeed.keys import TOP
from gpu_mem_calculator.tools.deepspeed.optimizer import OTHERS, PARAMS, SCHEDULES

VERSION = keys.VERSION
TARGET = Path(__file__).with_name("formats-deepspeed.md")
# Where the values that are read go, by the key of DeepSpeed's file.
HOME = {
    "train_micro_batch_size_per_gpu": "training.batch_size",
    "gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "gradient_clipping": "training.gradient_clipping",
    "train_batch_size": "checked, and completes the other two",
    "bf16.enabled": "training.precision bf16_mixed",
    "fp16.enabled": "training.precision fp16_mixed",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.cpu_offload": "engine.offload_optimizer cpu",
    "zero_optimization.cpu_offload_param": "engine.offload_param cpu",
    "zero_optimization.offload_optimizer.device": "engine.offload_optimizer",
    "zero_optimization.offload_param.device": "engine.offload_param",
    "optimizer": "training.optimizer, training.optimizer_implementation",
    "scheduler": "names are checked; takes no memory",
    "zero_allow_untested_optimizer": "must be true for SGD under ZeRO",
    "communication_data_type": "must be the model's dtype",
    "data_types.grad_accum_dtype": "must be the model's dtype",
    "data_types.param_dtype": "must be the model's dtype",
    "gradient_allreduce_op": "mean or sum, both in place; DeepSpeed refuses sum at stage 3",
    "allgather_size": "engine.allgather_bucket_size, if zero_optimization is true (the old form)",
    "aio.block_size": "must be at most 1 MiB with offload to NVMe",
    "activation_checkpointing.contiguous_memory_optimization": "counted as one buffer per layer",
    "activation_checkpointing.number_checkpoints": "counted as one for each layer",
    "activation_checkpointing.num_checkpoints": "DeepSpeed ignores this misspelling; it is listed",
}
GOOD = """\
{
  "train_batch_size": 64,
  "gradient_accumulation_steps": 4,
  "steps_per_print": 100,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.8, 0.999]}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1000}},
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": 5e8,
    "overlap_comm": true,
    "offload_optimizer": {"device": "cpu", "pin_memory": true}
  }
}
"""
WRONG = """\
{
  "train_batch_size": 60,
  "train_micro_batch_size_per_gpu": 2,
  "amp": {"enabled": false},
  "fp16": {"enabled": "yes"},
  "optimizer": {"type": "OneBitAdam"},
  "zero_optimization": {
    "stage": 3,
    "all_reduce_bucket_size": 5e8,
    "zero_quantized_weights": true
  }
}
"""
FILES = {"ds_config.json": GOOD, "wrong.json": WRONG}


def shown(command: str) -> list[str]:
    """A command as typed, and what it prints, in a folder with the files above."""
    heard = io.StringIO()
    before = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for name, text in FILES.items():
                Path(name).write_text(text, encoding="utf-8")
            with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
                main(shlex.split(command.replace("\\\n", " "))[1:])
        finally:
            os.chdir(before)
    return ["```console", f"$ {command}", *heard.getvalue().rstrip().splitlines(), "```", ""]


def rows(table: keys.Table, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its rule, sections opened."""
    for key, rule in table.items():
        path = f"{where}{key}"
        if isinstance(rule, Mapping):
            yield from rows(rule, f"{path}.")
        else:
            yield path, rule


def home(path: str) -> str:
    """Where a value goes, or what is done with it."""
    if path in HOME:
        return HOME[path]
    if path.partition(".")[2].startswith("offload"):
        return (
            "engine.pin_memory"
            if path.endswith("pin_memory")
            else "only for NVMe, and only with its default"
        )
    return f"engine.{path.rpartition('.')[2]}"


def tables() -> list[str]:
    """Read; may have one value; takes no memory; gone."""
    read = [(path, home(path)) for path, rule in rows(TOP) if isinstance(rule, keys.MemoryKey)]
    only = [
        (path, f"{', '.join(json.dumps(value) for value in rule.values) or 'nothing'}", rule.why)
        for path, rule in rows(TOP)
        if isinstance(rule, keys.FixedKey)
    ]
    only += [
        (f"{path}.{rule.switch}", ", ".join(map(json.dumps, rule.values)), rule.why)
        for path, rule in rows(TOP)
        if isinstance(rule, keys.SwitchedKey)
    ]
    free = [(path, rule.why) for path, rule in rows(TOP) if isinstance(rule, keys.MemoryFreeKey)]
    gone = [path for path, rule in rows(TOP) if isinstance(rule, keys.RemovedKey)]
    same = [f"`{path}`" for path, rule in rows(TOP) if isinstance(rule, keys.AliasKey)]
    return [
        "## Read",
        "",
        "| key | becomes |",
        "|---|---|",
        *(f"| `{path}` | {what} |" for path, what in read),
        "",
        f"Other spellings that DeepSpeed also accepts: {', '.join(same)}.",
        "",
        "Optimizers: AdamW, Adam (which is AdamW unless `adam_w_mode` is false), Lion, SGD with or",
        "without `momentum`. `torch_adam` is torch's Adam, with its temporary. Parameters: "
        + ", ".join(f"`{name}`" for name in dict.fromkeys(k for t in PARAMS.values() for k in t))
        + ".",
        f"Refused: {', '.join(OTHERS)}, and torch's others.",
        f"Schedules: {', '.join(SCHEDULES)}, and torch's.",
        "",
        "## Accepted with some values only",
        "",
        "Other values are refused. The last column says why.",
        "",
        "| key | may be | why not another value |",
        "|---|---|---|",
        *(f"| `{path}` | {values} | {why} |" for path, values, why in only),
        "",
        "## Takes no memory",
        "",
        "These keys are accepted. `validate` lists them.",
        "",
        "| key | why |",
        "|---|---|",
        *(f"| `{path}` | {why} |" for path, why in free),
        "",
        "## Removed from DeepSpeed",
        "",
        f"DeepSpeed {VERSION} itself refuses these: {', '.join(f'`{path}`' for path in gone)}.",
    ]


def page() -> str:
    """The whole page."""
    model = "--model llama2-7b --set hardware.num_gpus=8"
    parts = [
        "# DeepSpeed's JSON",
        "",
        "`calculate`, `explain`, `trace` and `measure` take a `ds_config.json` in place of a run",
        "file. They recognize it by its keys. The file does not name a model, so give `--model`:",
        "a preset, a name on the hub, or a path to a `config.json`. Keys and defaults are those",
        f"of DeepSpeed {VERSION}. `docs/formats_deepspeed.py` writes this page.",
        "",
        "```json",
        GOOD.rstrip(),
        "```",
        "",
        *shown(f"gpu-mem-calc calculate --config ds_config.json \\\n    {model}"),
        "Every key of DeepSpeed is read, known to take no memory, or refused with a sentence. A",
        "test compares the keys with DeepSpeed's own code. `validate` lists them and needs no",
        "model:",
        "",
        *shown("gpu-mem-calc validate ds_config.json --set hardware.num_gpus=8"),
        "What the file does not contain is assumed, and listed under *assumed*. `--set` changes",
        "it.",
        "",
        "- The number of GPUs is `hardware.num_gpus`. Without it, the three batch sizes give it if",
        "  all three are there.",
        "- With a pipeline (`parallelism.pipeline_parallel_size`), the number of data-parallel",
        "  ranks is GPUs / stages.",
        "- With a section `activation_checkpointing`, every layer is checkpointed; without it,",
        "  none.",
        "- Without `fp16` and `bf16`, DeepSpeed trains in fp32.",
        "- Without `gradient_clipping`, DeepSpeed clips at 1. A value of 0 turns clipping off. The",
        "  estimate stays the same, because ZeRO computes the norm in any case.",
        "",
        "All problems of a file are reported at once:",
        "",
        "```json",
        WRONG.rstrip(),
        "```",
        "",
        *shown("gpu-mem-calc validate wrong.json --set hardware.num_gpus=8"),
        "Comments (`//`, `#`, `/* */`) and a comma before `}` or `]` are accepted, as DeepSpeed's",
        "own parser does. For `auto`, the value is the one that transformers' Trainer writes:",
        "the defaults of its arguments (a batch of 8, 1 step, clipping at 1, fp32), and sizes that",
        "follow from the model's hidden size. Each is listed as assumed, and `--set` overrides it.",
        "",
        "The web page exports such a file for any DeepSpeed run. It reads back to the same",
        "estimate. In Python:",
        "",
        "```python",
        "from gpu_mem_calculator import estimate",
        "from gpu_mem_calculator.tools.deepspeed.read import read, run_file",
        "",
        'sections = read("ds_config.json", num_gpus=8)  # training, parallelism, engine, ...',
        'run = run_file("ds_config.json", model="gpt2", settings=["hardware.num_gpus=8"])',
        "estimate(run.data).needs_bytes, run.assumed",
        "```",
        "",
        *tables(),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
