"""An inference run file becomes a run: defaults are filled in, the rules of the engine checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from ...catalog.hub.names import MAIN, hub_name
from ...ledger.dtypes import dtype_name
from ...ledger.mesh import Mesh
from ...models.arch.arch import Arch
from ...models.arch.scaling import scaled
from ...run.cuda import capability
from ...run.cuda.runtimes import CUDA, runtime_notes, runtime_problems
from ...run.engine import Engine
from ...run.releases import UserRelease
from ...run.run import Run
from ...run.weights import FormatError
from ...run.weights.rank_weights import run_format
from ...run.weights.recipes import RECIPES
from ...serving import STARTERS, USUAL, server, server_names, server_on, server_row, spellings
from ..config import ModelConfig, RunFile
from ..find_model.model_source import ResolvedModel, find_model
from ..find_model.published_config import complete_config
from ..inference_config import InferenceConfig
from ..read import given_keys
from ..text.errors import InputError, Problems, nearest, quoted
from .hardware import Hardware, find_hardware
from .resolved_run import ResolvedRun
from .serving_question import length_problems
from .serving_split import (
    DATA,
    PIPELINE,
    TENSOR,
    server_gpus,
    shards_layers,
    spread,
    tensor_parallel_problem,
)

PRECISIONS = {"bf16": "bf16_pure", "fp16": "fp16_pure", "fp32": "fp32"}
Options = Mapping[str, Any]
SIZES = ("batch_size", "prompt_len", "new_tokens")
FILLED = ("max_seq_len", "n_ubatch")  # by what starts a server
AXES = {"tp": TENSOR, "pp": PIPELINE, "dp": DATA}


def find_server(config: InferenceConfig) -> Engine:
    """The serving engine that `inference.engine` names."""
    name = (config.engine or "transformers").lower()
    if name not in spellings():
        hint = nearest(name, spellings()) or f"; choose {', '.join(server_names())}"
        raise InputError(f"inference.engine={config.engine!r} is not a known engine{hint}")
    return server(spellings()[name])


def inference_options(config: InferenceConfig) -> dict[str, Any]:
    """The options of a run: the section's keys over the engine's defaults; others are refused."""
    engine = find_server(config)
    given = given_keys(config)
    given.pop("engine", None)
    options = {**engine.options, **given}
    options["dtype"] = dtype_name(options["dtype"])
    last = engine.generations.get(str(config.engine_generation).lower())
    if config.engine_version is None and last is not None:
        options["engine_version"] = last
    if config.max_seq_len is not None:
        _shorten_prompt(config, options, config.max_seq_len)
    problems = list(_problems(engine, given, options))
    if problems:
        raise InputError(problems)
    return options


def _shorten_prompt(config: InferenceConfig, options: dict[str, Any], longest: int) -> None:
    """Shorten the default prompt so that prompt and new tokens are at most `longest` tokens."""
    if config.prompt_len is None and options.get("prompt_len"):
        room = longest - (options.get("new_tokens") or 0)
        options["prompt_len"] = max(1, min(options["prompt_len"], room))


def _problems(engine: Engine, given: Options, options: Options) -> Iterator[str]:
    for key in given:
        if key not in engine.options:
            yield f"inference.{key} is not an option of {engine.title}; leave it out"
        elif key in engine.fixed and given[key] != engine.options[key]:
            fix = f"set it to {quoted(engine.options[key])}"
            yield f"inference.{key}={quoted(given[key])} is not modelled for {engine.title}; {fix}"
    dtype = options["dtype"]
    if dtype not in PRECISIONS:
        hint = nearest(dtype, PRECISIONS)
        if dtype in RECIPES:
            hint = f"; for {dtype} weights use --quantization {dtype} (inference.quantization)"
        yield f"inference.dtype={dtype!r} must be 'bf16', 'fp16' or 'fp32'{hint}"


def resolve_inference(file: RunFile, *, headers: bool = True) -> ResolvedRun:
    """The run that an inference run file describes; raises all its problems at once.

    headers: read the tensor headers of the checkpoint, so that weights count as they are stored.
    """
    assert file.inference is not None
    problems = Problems()
    attempt = problems.attempt
    config, versions = _at_release(file.inference, file)
    options = attempt(inference_options, config)
    section, as_published = complete_config(file.model, config.max_seq_len, config.quantization)
    model = attempt(find_model, section, headers)
    assumed_split = _spread(file, options, model) if options and model else ()
    ranks = server_gpus(options) if options else 1
    hardware = attempt(partial(find_hardware, fast=True), file.hardware, ranks)
    draft = attempt(_draft, config)
    if problems:
        raise InputError(problems)
    engine = find_server(config)
    has_sdpa = all(getattr(layer.mixer, "sdpa", True) for layer, _, _ in model.arch.runs)
    if config.attention is None and not has_sdpa and "attention" in options:
        options["attention"] = "eager"
    if engine.serve is None:
        _shorten_prompt(config, options, model.arch.max_seq_len)
    dtype_notes = list(_dtype_notes(config, options, hardware, engine))
    run = engine.complete(_run(model, hardware, options, engine, draft))
    rules = (*_rules(run, hardware, engine), *engine.problems(run), *_card_problems(run, engine))
    rules = (*rules, *length_problems(engine, options, model.arch))
    problems += dict.fromkeys(rules)
    if problems:
        raise InputError(problems)
    chosen = [key for key in SIZES if engine.serve is None]
    filled = (key for key in FILLED if key in options and run.options[key] != options[key])
    chosen += filled if (config.engine or "").lower() in STARTERS else ()
    if options.get("engine_version") != engine.options.get("engine_version"):
        chosen.append("engine_version")
    assumed = (*_assumed(config, run.options, chosen), *assumed_split, *as_published)
    notes = (*_long_context_notes(config, model.arch), *_revision_notes(section, engine))
    return ResolvedRun(
        run=run,
        engine=engine,
        hardware=hardware,
        model=model,
        assumed=(*assumed, *model.assumed, *hardware.assumed),
        decisive=(*hardware.decisive, *_assumed_release(config, run, engine, versions)),
        versions=versions,
        limits=(*hardware.limits, *(file.limits or ())),
        warnings=(
            *model.warnings,
            *dtype_notes,
            *notes,
            *capability.torch_notes(run, engine),
            *runtime_notes(run),
        ),
    )


def _at_release(
    config: InferenceConfig, file: RunFile
) -> tuple[InferenceConfig, dict[str, UserRelease]]:
    """The section at the user's release of its server, that release, and what starts it."""
    if (config.engine or "").lower() in STARTERS:
        return _started(config, file)
    name = spellings().get((config.engine or "").lower())
    package = server_row(name).package if name else ""
    have = (file.releases or {}).get(package)
    if config.engine_version is not None:
        return config, {package: UserRelease(config.engine_version)} if package else {}
    if have is None:
        return config, dict(file.releases or {})
    return replace(config, engine_version=have.release), dict(file.releases or {})


def _started(
    config: InferenceConfig, file: RunFile
) -> tuple[InferenceConfig, dict[str, UserRelease]]:
    """The same, of a program that starts a server of its own release (Ollama)."""
    package = str(config.engine).lower()
    _, key, newest = STARTERS[package]
    given, have = getattr(config, key), (file.releases or {}).get(package)
    if given is not None:
        return config, {package: UserRelease(given)}
    release = have.release if have else newest
    return replace(config, **{key: release}), dict(file.releases or {})


def _assumed_release(
    config: InferenceConfig, run: Run, engine: Engine, said: Iterable[str]
) -> tuple[str, ...]:
    """The server's release, where nothing says it: its defaults are those that decide.

    said: packages whose release is known
    """
    package = str(config.engine).lower()
    if package in STARTERS:
        title, key, _ = STARTERS[package]
        return () if package in said else (f"{title} {run.options[key]}",)
    release = run.options.get("engine_version")
    given = config.engine_version or config.ollama_version
    return (f"{engine.title} {release}",) if release and not given else ()


def _spread(file: RunFile, options: dict[str, Any], model: ResolvedModel) -> tuple[str, ...]:
    """Spread the model over `hardware.num_gpus` where no parallel size is given; the sizes as
    assumed.
    """
    assert file.inference is not None
    engine, given = find_server(file.inference), given_keys(file.inference)
    sizes = spread(model.arch, engine, options, given, file.hardware.num_gpus or 1)
    options |= sizes
    return tuple(f"inference.{axis}={size}" for axis, size in sizes.items() if size > 1)


def _gpus_problem(run: Run, hardware: Hardware, engine: Engine) -> str:
    """A sentence where the parallel sizes do not use the number of GPUs that is given."""
    by_layer = server_row(engine.name).splits_by_layer
    used = int(run.mesh.pp) if by_layer else server_gpus(run.options)
    if hardware.num_gpus == used:
        return ""
    given = f"hardware.num_gpus={hardware.num_gpus}"
    if not shards_layers(engine):
        fix = f"set it to 1, or use engine {USUAL!r}"
        return f"{given}: {engine.title} is modelled on one GPU; {fix}"
    product = " × ".join(name for name, axis in AXES.items() if axis in engine.options)
    return f"{given}, but {product} = {used}; set it to {used}, or leave the parallel sizes out"


def _dtype_notes(
    config: InferenceConfig, options: dict[str, Any], hardware: Hardware, engine: Engine
) -> Iterator[str]:
    """Set the dtype that a server falls back to on a card without bf16; a note where it does."""
    chip, given = hardware.compute_capability, config.dtype is not None
    cards = server_row(engine.name).cards
    dtype = capability.served_dtype(options["dtype"], cards, chip, given=given)
    if dtype != options["dtype"] and hardware.card and hardware.runtime == CUDA:
        options["dtype"] = dtype
        yield f"{hardware.card} has no bf16 units; {engine.title} uses {dtype}"


def _card_problems(run: Run, engine: Engine) -> Iterator[str]:
    """What the card cannot do: run the server, its dtype, or its weight format."""
    row = server_row(engine.name)
    yield from capability.server_problems(run, engine, row.cards)
    yield from runtime_problems(run, engine, row.runtimes, server_on)
    try:
        name = str(run.options["quantization"]) if engine.serve is None else run_format(run).name
    except FormatError:  # the engine's rules have the sentence
        return
    yield from capability.format_problems(run, engine, row.cards, name)


def _long_context_notes(config: InferenceConfig, arch: Arch) -> Iterator[str]:
    """A note where max_seq_len is beyond the model's positions, which servers accept if asked."""
    length = config.max_seq_len
    if length is not None and length > arch.max_seq_len:
        yield f"max_seq_len={length:,} exceeds the model's {arch.max_seq_len:,} positions"


def _revision_notes(section: ModelConfig, engine: Engine) -> Iterator[str]:
    """A note where the model has a revision: the printed command leaves it out."""
    place = hub_name(section.name or "")
    if engine.serve is not None and (section.revision or (place and place.revision != MAIN)):
        yield "the start command leaves the revision out; add the engine's own option for it"


def _draft(config: InferenceConfig) -> Arch | None:
    """The draft model of speculative decoding."""
    draft = config.speculative_model
    if draft is None:
        return None
    section = ModelConfig(name=draft) if isinstance(draft, str) else ModelConfig(config=draft)
    return find_model(section).arch


def _run(
    model: ResolvedModel, hardware: Hardware, options: Options, engine: Engine, draft: Arch | None
) -> Run:
    by_layer = server_row(engine.name).splits_by_layer  # as a pipeline stage does
    config = _quantization_config(model)
    return Run(
        arch=model.arch if engine.serve else scaled(model.arch, model.parameters_given),
        mesh=Mesh(
            dp=options.get("data_parallel_size") or 1,
            tp=options.get("tensor_parallel_size") or 1,
            pp=hardware.num_gpus if by_layer else options.get("pipeline_parallel_size") or 1,
            ep=options.get("expert_parallel_size") or 1,
        ),
        batch=options.get("batch_size") or 1,
        seq=options.get("prompt_len") or 1,
        new_tokens=options.get("new_tokens") or 0,
        micro_batches=1,
        precision=PRECISIONS[options["dtype"]],
        attention=options.get("attention") or "sdpa",
        options=options,
        **hardware.of_run,
        parameters_given=model.parameters_given,
        card_bytes=hardware.card_bytes,
        smi_bytes=hardware.smi_bytes,
        free_bytes=hardware.memory_bytes,
        used_bytes=hardware.used_bytes,
        quantization=_bitsandbytes_format(options, engine),
        double_quant=bool(config.get("bnb_4bit_use_double_quant", False)),
        quantized=config or None,
        stored=model.stored,
        stored_form=model.form,
        draft=draft,
    )


def _quantization_config(model: ResolvedModel) -> dict[str, Any]:
    """The `quantization_config` of the checkpoint's config.json; empty where it has none."""
    stored = (model.config or {}).get("quantization_config") or {}
    inner = stored if isinstance(stored, dict) else {"": stored}
    for key in ("", "quantization", "kv_cache_scheme"):
        if not isinstance(inner.get(key) or {}, dict):
            name = f"model.config.quantization_config{'.' * bool(key)}{key}"
            raise InputError(f"{name}={quoted(inner[key])} must be an object; leave it out")
    return inner


def _bitsandbytes_format(options: Options, engine: Engine) -> str | None:
    """The bitsandbytes format of a transformers run; None for servers, which have own kernels."""
    name = options.get("quantization")
    return name if engine.serve is None and name in ("nf4", "int8") else None


def _assumed(config: InferenceConfig, options: Options, keys: Iterable[str]) -> Iterator[str]:
    """`inference.key=value` for each of the keys that the section leaves out."""
    return (f"inference.{key}={options[key]}" for key in keys if getattr(config, key) is None)


def _rules(run: Run, hardware: Hardware, engine: Engine) -> Iterator[str]:
    arch, options = run.arch, run.options
    if not arch.trains and engine.serve is None:
        from .training_rules import not_trained

        yield not_trained(arch, "generate.py")
    if engine.serve is None:
        from ...pytorch.modelling.huggingface.activation_names import activation_problems

        yield from activation_problems(arch)
    yield from filter(None, [_gpus_problem(run, hardware, engine)])
    layers = len(arch.layers)
    if not server_row(engine.name).splits_by_layer and run.mesh.pp > layers:
        more = f"more than {layers} layers; use {layers}"
        yield f"inference.pipeline_parallel_size={run.mesh.pp} is {more}"
    yield from filter(None, [tensor_parallel_problem(arch, int(run.mesh.tp))])
    learned = any("position" in dict(w.dims) for w in arch.embedding)
    length = options.get("max_seq_len") if engine.serve else run.seq + run.generated
    name = "max_seq_len" if engine.serve else "prompt_len + new_tokens"
    if learned and length is not None and length > arch.max_seq_len:
        positions = f"{arch.max_seq_len} learned positions; use at most {arch.max_seq_len}"
        yield f"inference.{name} is {length}, more than the model's {positions}"
