"""The tools that agents call: their names, what they are for, and what they take.

An argument's description is the rule that a wrong value is refused with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from ...runfile.field_types import Count, Object, Parameters
from ..plan_question import Goal

Source = Annotated[
    str | dict[str, Any],
    Meta(
        description="a launch command, a script, a manifest, another tool's file as text, a model's"
        " name, or a run file as text or object"
    ),
]
Model = Annotated[
    str, Meta(min_length=1, description="a model's name, owner/name on the hub, or a size as 7B")
]
CardName = Annotated[str | int, Meta(description="a card, such as h100, a100-80gb or 4090")]
Release = Annotated[str, Meta(min_length=1, description="a release, such as vllm=0.11.2")]
Settings = Annotated[
    dict[str, Any],
    Meta(description='more keys of a run file, such as {"training.optimizer": "adamw_8bit"}'),
]
Folder = Annotated[
    str,
    Meta(
        min_length=1,
        description="the folder of the files that the other arguments name; without it no file is"
        " opened",
    ),
]
Log = Annotated[str, Meta(min_length=1, description="what it printed, with the lines around")]
LogFile = Annotated[str, Meta(min_length=1, description="the path of a log, in place of text")]
LOCAL = ("folder", "file")  # arguments that open files: of a server on standard input alone


class ToolArguments(Struct, frozen=True, kw_only=True):
    """What one tool takes. A tool's purpose is the docstring of its struct."""

    @classmethod
    def fields(cls) -> Iterator[tuple[str, Any, bool]]:
        """Each argument: its name, its type, and whether it must be given."""
        hints = get_type_hints(cls, include_extras=True)
        for one in msgspec.structs.fields(cls):
            yield one.name, hints[one.name], one.required


class CheckArguments(ToolArguments, frozen=True, kw_only=True):
    """Does a command, script, manifest, tool's file or run file fit, before it is started? Says the
    verdict, the parts, and what would fit. Runs nothing."""

    source: Source
    gpu: CardName | None = None
    at: Release | None = None
    settings: Settings | None = None
    folder: Folder | None = None


class EstimateArguments(ToolArguments, frozen=True, kw_only=True):
    """GPU memory to train or fine-tune a model, by its name: the verdict, the parts at the peak,
    the longest sequence that fits, and what would fit."""

    model: Model
    gpu: CardName | None = None
    gpus: Count | None = None
    method: Literal["full", "lora", "qlora"] | None = None
    engine: Annotated[str, Meta(description="pytorch, fsdp, deepspeed, zero3, megatron")] | None = (
        None
    )
    seq_len: Count | None = None
    batch_size: Count | None = None
    settings: Settings | None = None
    folder: Folder | None = None


class ServeArguments(ToolArguments, frozen=True, kw_only=True):
    """GPU memory to serve a model: how many users fit at which context, the parts, the speed, and
    the command that starts it."""

    model: Model
    gpu: CardName | None = None
    gpus: Count | None = None
    engine: (
        Annotated[str, Meta(description="vllm, sglang, tensorrt_llm, tgi, llamacpp or ollama")]
        | None
    ) = None
    context: Count | None = None
    users: Count | None = None
    quantization: Annotated[str, Meta(description="fp8, awq, gptq, q4_k_m")] | None = None
    at: Release | None = None
    settings: Settings | None = None
    folder: Folder | None = None


class PlanArguments(ToolArguments, frozen=True, kw_only=True):
    """Which set-up is best on these GPUs? Searches engines, parallelism, micro-batch and recompute
    for training, or with `serve` servers for users; fastest first. May take a minute."""

    model: Model | None = None
    gpus: Count
    gpu: CardName
    seq_len: Count | None = None
    global_batch: Count | None = None
    engine: Annotated[str, Meta(description="engines with commas between")] | None = None
    goal: Goal | None = None
    serve: Annotated[str, Meta(description="a server, or any")] | None = None
    users: Count | None = None
    context: Count | None = None
    price: Annotated[float, Meta(ge=0.001, description="the price of a GPU-hour")] | None = None
    tokens: Parameters | None = None
    fix: Object | None = None


class DiagnoseArguments(ToolArguments, frozen=True, kw_only=True):
    """Why did a run die or run out of memory? Reads a log, an error, or nvidia-smi's table: the
    cause, how certain it is, and what helps."""

    text: Log | None = None
    file: LogFile | None = None
    run: Source | None = None
    gpu: CardName | None = None
    at: Release | None = None
    folder: Folder | None = None


class CompareArguments(ToolArguments, frozen=True, kw_only=True):
    """What differs between two runs, commands, models, cards or releases, part by part. Without b,
    a is compared with itself on another card or release."""

    a: Source
    b: Source | None = None
    gpu_a: CardName | None = None
    gpu_b: CardName | None = None
    at_a: Release | None = None
    at_b: Release | None = None
    folder: Folder | None = None


TOOLS: Mapping[str, type[ToolArguments]] = {
    "check": CheckArguments,
    "estimate": EstimateArguments,
    "serve": ServeArguments,
    "plan": PlanArguments,
    "diagnose": DiagnoseArguments,
    "compare": CompareArguments,
}


def purpose(kind: type[ToolArguments]) -> str:
    """What a tool is for."""
    return " ".join((kind.__doc__ or "").split())


def input_schema(kind: type[ToolArguments], *, local: bool) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments; those that open files only where it is `local`."""
    shown = [one for one in kind.fields() if local or one[0] not in LOCAL]
    return {
        "type": "object",
        "properties": {name: _schema(hint) for name, hint, _ in shown},
        "required": [name for name, _, required in shown if required],
        "additionalProperties": False,
    }


def _schema(hint: Any) -> dict[str, Any]:
    """The schema of one argument, without the null that stands for one that is left out."""
    given = next((one for one in get_args(hint) if one is not type(None)), hint)
    made = msgspec.json.schema(given if type(None) in get_args(hint) else hint)
    return {key: value for key, value in made.items() if key not in ("minLength", "default")}
