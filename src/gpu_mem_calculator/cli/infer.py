"""Estimate a server: weights, KV cache, and how many users fit at which context."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec.structs import replace

from ..estimates.calculator import Estimate, full_estimate, with_other_cards
from ..estimates.serving.infer_command import InferCommand, release_keys, value_text
from ..runfile.inference_config import InferenceConfig
from ..runfile.read import with_settings
from ..runfile.resolve.resolve_inference import find_server
from ..runfile.resolve.serving_question import question_keys
from ..runfile.text.errors import InputError, quoted
from ..serving import OF_GGUF, USUAL, server_names
from ..tools.read import Asked, read
from .fit_check import save_run
from .output import show_answer
from .parser import option_keys
from .releases import at_releases
from .serving import serving_answer

EXPERTS = "inference.expert_parallel_size"
LONGEST, USERS = "inference.max_seq_len", "inference.batch_size"
ALL = "all"  # --ep without a number
# The keys that options set as they are given; --ep is read in `_with_experts`.
KEYS = [key for key in option_keys("infer") if key != EXPERTS]


def run(args: argparse.Namespace) -> int:
    """Estimate the server of the options and report it; or answer the two questions."""
    source = _source(args)
    data = source.run
    if args.export:
        from .export import check_export

        check_export(args)
        if args.largest_model or args.fewest_gpus:
            raise InputError(
                "--export is for one server; leave --largest-model and --fewest-gpus out"
            )
    if args.largest_model and args.fewest_gpus:
        raise InputError("--largest-model and --fewest-gpus cannot be combined; give one of them")
    if args.parts and not args.explain:
        raise InputError("--parts needs --explain; add --explain, or leave --parts out")
    if args.largest_model:
        return _largest(args, data)
    if args.fewest_gpus:
        return _fewest(args, data)
    estimate = with_other_cards(full_estimate(source))
    save_run(args, estimate)
    if args.export:
        from ..report.serving.words import sentence
        from .export import export_estimate

        return export_estimate(args, estimate, sentence(estimate))
    if args.explain:
        from .explain import show_explanation

        return show_explanation(args, estimate)
    asked = _command(args, data)
    return serving_answer(args, estimate, asked, args.contexts, args.concurrency)


def _source(args: argparse.Namespace) -> Asked:
    """The run that the options describe."""
    if args.model is not None and args.model_name is not None:
        raise InputError("MODEL and --model are the same; give one of them")
    args.model = args.model or args.model_name
    if args.config is not None and args.model is not None:
        raise InputError("infer takes a MODEL or --config FILE, not both")
    source = read(args.config) if args.config is not None else Asked(run={})
    data = source.run
    if args.model is not None:
        data["model"] = {"name": args.model}
        source = _of_gguf(args, source)
        data = source.run
    if args.largest_model and args.model is not None:
        fix = f"leave it out, or use gpu-mem-calc infer {args.model} --fewest-gpus"
        raise InputError(f"--largest-model looks for a model, and {args.model!r} names one; {fix}")
    if "model" not in data and not args.largest_model:
        raise InputError("infer needs a MODEL, such as llama3.1-8b; see gpu-mem-calc presets")
    inference = data.get("inference") or {}
    if not isinstance(inference, dict):
        raise InputError(f"inference={quoted(inference)} must be an object")
    asked = args.export if args.export in server_names() else None
    given = args.engine or inference.get("engine") or asked
    inference = {**inference, "engine": given or _usual_server(data)}
    settings = [f"{key}={value}" for key, value in _keys(args, inference).items()]
    run = with_settings({**data, "inference": inference}, (*settings, *args.settings))
    run = at_releases(args, run)
    return replace(source, run=_with_experts(run, getattr(args, EXPERTS)))


def _of_gguf(args: argparse.Namespace, source: Asked) -> Asked:
    """The source with the model and the type that Ollama's name, or that of a file that is not
    here, means; it is served by the server of GGUF files.
    """
    import os

    if not (":" in args.model or args.model.lower().endswith(".gguf")):
        return source
    if args.engine not in (None, OF_GGUF) or os.path.exists(args.model):
        return source
    from ..tools.ollama.read import named_file

    found = named_file(args.model)
    if found is None:
        return source
    own = {"engine": OF_GGUF, "quantization": found.quantization.lower()}
    run = {**source.run, "model": {"name": found.model}, "inference": own}
    said = f"{args.model} is {found.model} in {found.quantization}, by its name"
    return Asked(run=run, notes=(*source.notes, said))


def _usual_server(data: dict[str, Any]) -> str:
    """The server of GGUF files for one or a repository of them, else the usual one."""
    model = data.get("model")
    name = str(model.get("name", "")) if isinstance(model, dict) else ""
    return OF_GGUF if name.lower().endswith("gguf") else USUAL


def _keys(args: argparse.Namespace, inference: dict[str, Any]) -> dict[str, str]:
    """The keys that the options set, as `--set` writes them."""
    values = {key: getattr(args, key) for key in KEYS}
    if args.context is not None:
        if values[LONGEST] is not None:
            raise InputError("--context and --max-model-len mean the same; give one of them")
        engine = find_server(InferenceConfig(engine=str(inference["engine"])))
        asked = question_keys(engine, values[USERS], args.context)
        values |= {f"inference.{key}": value for key, value in asked.items()}
    return {key: value_text(value) for key, value in values.items() if value is not None}


def _command(args: argparse.Namespace, data: dict[str, Any]) -> InferCommand:
    """The command line as it was given, to which changes can be added."""
    source = [args.model] if args.model else ["--config", args.config] if args.config else []
    keys = {"inference.engine": args.engine} if args.engine else {}
    keys |= _keys(args, data["inference"]) | release_keys(data)
    if getattr(args, EXPERTS) is not None:
        keys[EXPERTS] = str(data["inference"]["expert_parallel_size"])
    settings = dict(setting.split("=", 1) for setting in args.settings)
    return InferCommand(source, {**keys, **settings})


def _with_experts(data: dict[str, Any], size: str | None) -> dict[str, Any]:
    """The run with its experts sharded over `size` ranks, or over all of them."""
    if size is None:
        return data
    if size == ALL:  # over all ranks
        from ..runfile.resolve.resolve import resolve

        mesh = resolve(read(data).file, headers=False).run.mesh
        size = str(int(mesh.tp * mesh.dp))
        if size == "1":
            raise InputError("--ep needs several GPUs to shard the experts over; add --gpus 8")
        return with_settings(data, [f"{EXPERTS}={size}"])
    sizes = {key for section in ("inference", "hardware") for key in data.get(section, {})}
    if not sizes & {"tensor_parallel_size", "data_parallel_size", "num_gpus"}:
        data = with_settings(data, [f"hardware.num_gpus={size}"])
    return with_settings(data, [f"{EXPERTS}={size}"])


def _fewest(args: argparse.Namespace, data: dict[str, Any]) -> int:
    from ..advice.serving.changes import Server, fewest_gpus
    from ..report.serving.lists import fewest_lines

    estimate = full_estimate(data, replay=False)
    change = fewest_gpus(Server(estimate, _command(args, data)))
    started = None
    if change is not None:
        started = full_estimate(with_settings(estimate.result.run, change.setting), replay=False)
    lines = list(fewest_lines(estimate, change, started))
    _show_changes(args, started or estimate, [change] if change else [], lines)
    return 0 if change is not None or not args.check else 1


def _largest(args: argparse.Namespace, data: dict[str, Any]) -> int:
    from ..advice.serving.changes import largest_models
    from ..report.serving.lists import largest_lines

    asked = _command(args, data)
    changes = largest_models(data, command=asked)
    first = (
        full_estimate(with_settings(data, changes[0].setting), replay=False) if changes else None
    )
    _show_changes(args, first, changes, list(largest_lines(first, changes)))
    return 0 if changes or not args.check else 1


def _show_changes(
    args: argparse.Namespace, server: Estimate | None, changes: list[Any], lines: list[Any]
) -> None:
    """Show the changes of a server, as data with the server's engine and card."""
    if args.format == "html":
        raise InputError(f"this answer has no --format {args.format}; choose table or json")
    from msgspec import to_builtins

    from ..report.serving.lists import server_facts

    facts = server_facts(server) if server is not None else {}
    show_answer(args, lambda: [{**to_builtins(change), **facts} for change in changes], lines)
