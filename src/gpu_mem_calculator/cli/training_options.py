"""Everyday options of training commands: each sets keys of the run file, and wins over a file's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..runfile.config import TrainingConfig
from ..runfile.other_names import CHECKPOINTING
from ..runfile.read import allowed_words, key_types, with_settings
from ..runfile.resolve.recompute_policies import LEVELS, NAMES
from ..runfile.resolve.training_defaults import named_dtype
from ..runfile.text.errors import InputError
from ..training.engines import DEFAULT, engine, engine_row, shorthands, spellings
from .parser import option_keys
from .words import TABLES

GPUS_PER_NODE = 8  # where only the nodes are given
PRECISION, DTYPE = "training.precision", "training.dtype"
DTYPES = ("bf16", "fp16", "fp32")
# Other spellings of a precision: those of torch and of Lightning.
SPELLINGS: Mapping[str, str] = TABLES["precisions"]
# Levels of --checkpointing that are policies of training.recompute
# (runfile/resolve/recompute_policies.py).
POLICIES = tuple(name for name in NAMES if name not in LEVELS)
# Keys of a file that an option replaces together with its own.
REPLACED: Mapping[str, Sequence[str]] = TABLES["replaced"]
FLAGS = option_keys("training")  # key -> option


class Chosen(Struct, frozen=True):
    """What the options set: `section.key=value` texts, and what a recipe assumes."""

    settings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def chosen_settings(args: argparse.Namespace, data: Mapping[str, Any]) -> Chosen:
    """The settings of the everyday options for a run file's data; --set is not among them."""
    if "recipe" not in args:
        return Chosen()
    recipe, rank = _recipe(args)
    settings = _engine_settings(args, data)
    run = _run(data, settings, args.settings)
    name = _engine_name(run)
    assumed: tuple[str, ...] = ()
    if recipe is not None:
        card = getattr(args, "hardware.gpu") or (run.get("hardware") or {}).get("gpu")
        from ..runfile.keys.recipes import recipe_words

        values = _recipe_values(args, recipe, rank, name, card)
        settings |= values
        assumed = (recipe_words(recipe, values, _kept(values, args)),) if values else ()
    own = {key: getattr(args, key) for key in FLAGS if getattr(args, key) is not None}
    if own.get(CHECKPOINTING) in POLICIES:
        own = {**own, CHECKPOINTING: None, "training.recompute": own[CHECKPOINTING]}
    stale = {old for key in own for old in REPLACED.get(key, ()) if _given(data, old)}
    settings |= {**dict.fromkeys(stale), **own}
    settings |= _precision(args, run, adapters="training.lora.r" in settings, engine_name=name)
    if args.offload is not None:
        settings |= _offload(args.offload, name, run)
    if settings.get("hardware.num_nodes") and not _given(run, "hardware.num_gpus"):
        settings.setdefault("hardware.num_gpus", GPUS_PER_NODE * settings["hardware.num_nodes"])
    return Chosen(tuple(f"{k}={_text(v)}" for k, v in settings.items()), assumed)


def option_words(args: argparse.Namespace) -> list[str]:
    """The everyday options as words of another command line."""
    words: list[str] = []
    for key, name in FLAGS.items():
        if (value := getattr(args, key, None)) is not None:
            words += [name, value if isinstance(value, str) else _text(value)]
    for name in ("engine", "zero", "offload", "precision", "lora", "qlora", "recipe"):
        if (value := getattr(args, name, None)) is not None:
            words += [f"--{name}", str(value)]
    return words


def _recipe(args: argparse.Namespace) -> tuple[str | None, int | None]:
    """The recipe that the options name, and its rank."""
    named = [name for name in ("lora", "qlora") if getattr(args, name) is not None]
    if len(named) > 1:
        raise InputError("--lora and --qlora are two recipes; give one of them")
    if named and args.recipe not in (None, *named):
        raise InputError(f"--{named[0]} contradicts --recipe {args.recipe}; give one of them")
    recipe = named[0] if named else args.recipe
    return recipe, getattr(args, recipe, None) if recipe in ("lora", "qlora") else None


def _recipe_values(
    args: argparse.Namespace, recipe: str, rank: int | None, engine_name: str, card: str | None
) -> dict[str, Any]:
    """A recipe's values, in the card's 16-bit dtype; those that --set contradicts give way."""
    from ..runfile.keys.recipes import recipe_settings

    values = recipe_settings(recipe, rank, engine_name, named_dtype(card))
    if not values:
        return {}
    own = with_settings({}, args.settings).get("training", {})
    packed = own.get("quantization", values.get("training.quantization"))
    if packed != "nf4":
        values.pop("training.double_quant", None)
    if packed in (None, "none"):
        values.pop("training.upcast_unquantized", None)
    if own.get("precision") or own.get("dtype"):
        dtype = str(own.get("dtype") or own["precision"].partition("_")[0])
        values |= _base(dtype, values[PRECISION])
    return {**values, DTYPE: None}


def _kept(values: Mapping[str, Any], args: argparse.Namespace) -> set[str]:
    """Keys of a recipe that no other option changes."""
    own = {setting.partition("=")[0].strip() for setting in args.settings}
    own |= {key for key in FLAGS if getattr(args, key) is not None}
    own |= {PRECISION} if args.precision else set()
    return set(values) - own


def _base(dtype: str, precision: str) -> dict[str, Any]:
    """The precision of a recipe in another dtype; fp32 has no autocast."""
    if dtype == "fp32":
        return {PRECISION: "fp32", "training.autocast": None}
    return {PRECISION: f"{dtype}_{precision.rpartition('_')[2]}"}


def _engine_settings(args: argparse.Namespace, data: Mapping[str, Any]) -> dict[str, Any]:
    """The engine and its ZeRO stage; options that only the file's engine has are removed."""
    settings: dict[str, Any] = {}
    if args.engine is not None:
        settings["engine.type"] = args.engine
    run = _run(data, settings, args.settings)
    name, stage = _engine_name(run), run.get("engine", {}).get("zero_stage")
    if args.zero is not None:
        if not _given(run, "engine.type"):
            settings["engine.type"] = name = shorthands()[f"zero{args.zero}"][0]
        if "zero_stage" not in engine(name).options:
            own = f"the engine is {engine(name).title}"
            raise InputError(
                f"--zero {args.zero} is DeepSpeed's, and {own}; use --engine deepspeed, or leave "
                "--zero out"
            )
        named = _run({}, {"engine.type": args.engine}, ()) if args.engine else {}
        if named.get("engine", {}).get("zero_stage") not in (None, int(args.zero)):
            raise InputError(f"--engine {args.engine} contradicts --zero {args.zero}; give one")
        settings["engine.zero_stage"] = int(args.zero)
    elif args.engine is not None and engine_row(name).zero_hooks and stage is None:
        settings["engine.zero_stage"] = 2
    if args.engine is not None:
        given = data.get("engine")
        foreign = [key for key in given or {} if key != "type" and key not in engine(name).options]
        settings |= {f"engine.{key}": None for key in foreign if isinstance(given, Mapping)}
    return settings


def _offload(where: str, name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer states on the host; at ZeRO-3 and with FSDP, the weights too."""
    if where not in ("cpu", "nvme", "none"):
        raise InputError(f"--offload {where!r} is not one of cpu, nvme, none")
    options = engine(name).options
    if "cpu_offload" in options:
        if where == "nvme":
            raise InputError("--offload nvme is DeepSpeed's; FSDP has --offload cpu")
        return {"engine.cpu_offload": where == "cpu"}
    if "offload_optimizer" not in options:
        fix = "add --zero 3, or --engine fsdp"
        raise InputError(f"--offload {where}: {engine(name).title} has no offload; {fix}")
    settings = {"engine.offload_optimizer": where}
    if run.get("engine", {}).get("zero_stage", options.get("zero_stage")) == 3:
        settings["engine.offload_param"] = where
    return settings


def _precision(
    args: argparse.Namespace, run: Mapping[str, Any], *, adapters: bool, engine_name: str
) -> dict[str, Any]:
    """The precision that --precision names; bf16 alone is what the engine or the recipe does."""
    if args.precision is None:
        return {}
    name = args.precision.lower().replace("-", "_")
    name = SPELLINGS.get(name, name)
    pairs = [one for one in allowed_words(key_types(TrainingConfig)["precision"]) if "_" in one]
    if name in pairs:
        return {PRECISION: name, DTYPE: None}
    if name not in DTYPES:
        raise InputError(
            f"--precision {args.precision!r} is not one of {', '.join((*DTYPES, *pairs))}"
        )
    adapters = adapters or bool(run.get("training", {}).get("lora"))
    if name == "fp32":
        return {PRECISION: "fp32", DTYPE: None, "training.autocast": None}
    from ..runfile.keys.recipes import recipe_settings

    usual = recipe_settings("lora", engine=engine_name)[PRECISION]
    pure = adapters and engine(engine_name).transformers and usual.endswith("_pure")
    return {PRECISION: f"{name}_{'pure' if pure else 'mixed'}", DTYPE: None}


def _run(data: Mapping[str, Any], settings: Mapping[str, Any], own: Any) -> dict[str, Any]:
    """A run file's data with settings and those of --set."""
    texts = [f"{key}={_text(value)}" for key, value in settings.items()]
    return with_settings(dict(data), (*texts, *own))


def _engine_name(run: Mapping[str, Any]) -> str:
    """The engine of a run; an unknown one is refused."""
    from ..runfile.config import EngineConfig
    from ..runfile.resolve.resolve_training import find_engine

    given = (run.get("engine") or {}).get("type")
    name = spellings().get(str(given or DEFAULT).lower())
    return name or find_engine(EngineConfig(type=str(given))).name


def _given(run: Mapping[str, Any], path: str) -> bool:
    section, _, key = path.partition(".")
    return (run.get(section) or {}).get(key) is not None


def _text(value: Any) -> str:
    """A value as `--set` reads it; a name of digits, such as 4090, stays a text."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) and not value.isdecimal() else json.dumps(value)


def settings_words(settings: list[str]) -> Iterator[str]:
    """--set, as often as there are settings."""
    for one in settings:
        yield from ("--set", one)
