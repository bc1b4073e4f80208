"""What a training script itself must do, as the Python lines of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from ...runfile.resolve.resolved_run import ResolvedRun

WIDTH = 84
DTYPES = ("dtype", "bnb_4bit_compute_dtype")  # arguments that are torch's dtypes


def script_lines(program: Mapping[str, Any], resolved: ResolvedRun) -> Iterator[str]:
    """The lines that load the model and its adapters, as comments of the file."""
    yield "TrainingArguments have no keys for the model. In train.py:"
    load = _arguments(program["load"])
    if program.get("quantization"):
        bits = f"BitsAndBytesConfig({_arguments(program['quantization'])})"
        load += f", quantization_config={bits}"
    name = resolved.model.address
    yield from _code(f"model = AutoModelForCausalLM.from_pretrained({name!r}, {load})")
    if program.get("quantization"):
        yield from _code("model = prepare_model_for_kbit_training(model)")
    if program.get("peft"):
        lora = f"LoraConfig({_arguments(program['peft'])})"
        yield from _code(f"model = get_peft_model(model, {lora})")
    yield f"Its batches have sequences of {program['data']['seq_len']:,} tokens."


def _code(line: str) -> list[str]:
    return wrap(line, WIDTH, initial_indent="    ", subsequent_indent=" " * 8)


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}=torch.{value}" if key in DTYPES else f"{key}={value!r}"
        for key, value in values.items()
    )
