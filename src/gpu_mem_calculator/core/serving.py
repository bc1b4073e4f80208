"""An inference section becomes a run: its engine's defaults filled in, its rules checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..ledger.dtypes import dtype_name
from ..ledger.mesh import Mesh
from ..memory.engine import Engine
from ..memory.run import Run
from ..serving import PLANNED, server, spellings
from .errors import InputError, Problems, nearest
from .hardware import Hardware, find_hardware
from .model_source import Model, find_model
from .models import InferenceConfig, RunFile
from .resolved import Resolved

PRECISIONS = {"bf16": "bf16_pure", "fp16": "fp16_pure", "fp32": "fp32"}
# Options that transformers has in one value only; another one is refused, never ignored.
ONE_VALUE = ("engine_version", "quantization", "kv_cache_dtype", "tensor_parallel_size",
             "pipeline_parallel_size")  # fmt: skip


def find_server(config: InferenceConfig) -> Engine:
    """The serving engine that a name means."""
    name = (config.engine or "transformers").lower()
    if name in spellings():
        return server(spellings()[name])
    if name in PLANNED:
        raise InputError([f"inference.engine={config.engine!r} is not modelled by this version; "
                          "use 'transformers'"])  # fmt: skip
    raise InputError([f"inference.engine={config.engine!r} is not a known engine"
                      f"{nearest(name, (*spellings(), *PLANNED))}"])  # fmt: skip


def inference_options(config: InferenceConfig) -> dict[str, Any]:
    """The section over its engine's defaults; what the engine does not act on is refused."""
    engine = find_server(config)
    given = {key: value for key in config.__struct_fields__ if key != "engine"
             and (value := getattr(config, key)) is not None}  # fmt: skip
    found = {**engine.options, **given}
    found["dtype"] = dtype_name(found["dtype"])
    problems = list(_problems(engine, given, found))
    if problems:
        raise InputError(problems)
    return found


def _problems(engine: Engine, given: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    for key in given:
        if key not in engine.options:
            yield f"inference.{key} is not an option of {engine.title}; leave it out"
        elif key in ONE_VALUE and given[key] != engine.options[key]:
            yield (f"inference.{key}={given[key]!r} is not modelled for {engine.title}; "
                   f"set it to {engine.options[key]!r}")  # fmt: skip
    if found["dtype"] not in PRECISIONS:
        yield (f"inference.dtype={found['dtype']!r} must be 'bf16', 'fp16' or 'fp32'"
               f"{nearest(found['dtype'], PRECISIONS)}")  # fmt: skip
    length = found["prompt_len"] + found["new_tokens"]
    if found["max_seq_len"] is not None and length > found["max_seq_len"]:
        yield (f"inference.prompt_len + new_tokens is {length}, more than "
               f"max_seq_len={found['max_seq_len']}")  # fmt: skip


def resolve_inference(file: RunFile) -> Resolved:
    """Turn a run file with an inference section into a run, or raise every problem at once."""
    assert file.inference is not None
    problems = Problems()
    attempt = problems.attempt
    given = file.inference
    options = attempt(inference_options, given)
    model = attempt(find_model, file.model)
    hardware = attempt(find_hardware, file.hardware, 1)
    if problems:
        raise InputError(problems)
    engine = find_server(file.inference)
    has_sdpa = all(getattr(layer.mixer, "sdpa", True) for layer, _, _ in model.arch.runs)
    if given.attention is None and not has_sdpa:
        options["attention"] = "eager"
    run = _run(model, hardware, options)
    problems += (*_rules(run, hardware, options, engine), *engine.problems(run))
    if problems:
        raise InputError(problems)
    return Resolved(
        run=run, engine=engine, hardware=hardware, model=model,
        assumed=(*_assumed(file.inference, options, ("batch_size", "prompt_len", "new_tokens")),
                 *model.assumed, *hardware.assumed),
        warnings=model.warnings,
    )  # fmt: skip


def _run(model: Model, hardware: Hardware, options: dict[str, Any]) -> Run:
    return Run(
        arch=model.arch,
        mesh=Mesh(dp=1),
        batch=options["batch_size"],
        seq=options["prompt_len"],
        new_tokens=options["new_tokens"],
        micro_batches=1,
        precision=PRECISIONS[options["dtype"]],
        attention=options["attention"],
        options=options,
        gpus_per_node=hardware.gpus_per_node,
        num_nodes=hardware.num_nodes,
        compute_capability=hardware.compute_capability,
        parameters_given=model.parameters_given,
    )


def _assumed(
    config: InferenceConfig, options: dict[str, Any], keys: Iterable[str]
) -> Iterator[str]:
    """Sizes of the run that the file leaves out."""
    return (f"inference.{key}={options[key]}" for key in keys if getattr(config, key) is None)


def _rules(run: Run, hardware: Hardware, options: dict[str, Any], engine: Engine) -> Iterator[str]:
    arch, ranks = run.arch, options["tensor_parallel_size"] * options["pipeline_parallel_size"]
    if not arch.trains:
        yield (f"model: the activations of {arch.family} models are not modelled; use gpu-mem-calc "
               "deepspeed --model-path for the model states")  # fmt: skip
    if hardware.num_gpus != ranks:
        yield (f"hardware.num_gpus={hardware.num_gpus}, but {engine.title} runs on {ranks} here; "
               f"set it to {ranks}")  # fmt: skip
    learned = any("position" in dict(w.dims) for w in arch.embedding)
    length = options["prompt_len"] + options["new_tokens"]
    if learned and length > arch.max_seq_len:
        yield (f"inference.prompt_len + new_tokens is {length}, more than the model's "
               f"{arch.max_seq_len} learned positions; use at most {arch.max_seq_len}")  # fmt: skip
