"""Estimate a server: weights, room for the cache, how many users at which context."""

from __future__ import annotations

import argparse
from typing import Any

from ..core.calculator import full_estimate
from ..core.errors import InputError
from ..core.runfile import with_settings
from ..core.text_data import load_text
from .calculate import add_check
from .explain import add_parts, show_explanation
from .output import show, write
from .parser import Parser, add_output, add_settings, positive, whole
from .serving import serving_answer

EXAMPLES = """\
examples:
  gpu-mem-calc infer llama3.1-8b --gpu h100-80gb-sxm
  gpu-mem-calc infer deepseek-v3 --gpu h200 --tp 8 --max-model-len 32768
  gpu-mem-calc infer qwen3-32b --gpu h100-80gb-sxm --fewest-gpus
  gpu-mem-calc infer llama3.1-8b --engine llamacpp --quantization q4_k_m \\
    --gpu rtx-4090 --max-model-len 32768
  gpu-mem-calc infer --largest-model --gpu rtx-4090 --quantization awq
  gpu-mem-calc infer llama3.1-8b --gpu l40s --contexts 4096,32768 \\
    --concurrency 1,16,64 --format json"""
UTILIZATION = "inference.gpu_memory_utilization"
# Options that set one key of the run file each: option, key, type, help.
KEYS: tuple[tuple[str, str, Any, str], ...] = (
    ("--gpu", "hardware.gpu", str, "a card from gpu-mem-calc gpus"),
    ("--gpu-mem", "hardware.gpu_memory_gb", positive, "memory of one GPU as marketed (80)"),
    ("--tp", "inference.tensor_parallel_size", whole, "GPUs that share each layer"),
    ("--pp", "inference.pipeline_parallel_size", whole, "GPUs that have layers each"),
    ("--dp", "inference.data_parallel_size", whole, "copies of the model"),
    ("--max-model-len", "inference.max_seq_len", whole, "the longest sequence to serve"),
    ("--dtype", "inference.dtype", str, "bf16 (default), fp16 or fp32"),
    ("--quantization", "inference.quantization", str, "of the weights: fp8, awq, q4_k_m, ..."),
    ("--kv-cache-dtype", "inference.kv_cache_dtype", str, "auto (default), fp8, int8, int4"),
    (
        "--gpu-memory-utilization",
        UTILIZATION,
        positive,
        "the share of the card that the server may take",
    ),
    ("--max-num-seqs", "inference.max_num_seqs", whole, "sequences that run at once"),
    ("--max-num-batched-tokens", "inference.max_num_batched_tokens", whole, "tokens of one pass"),
    ("--batch-size", "inference.batch_size", whole, "sequences at once"),
    ("--prompt-len", "inference.prompt_len", whole, "tokens of a prompt"),
    ("--new-tokens", "inference.new_tokens", whole, "tokens that are generated"),
)


def arguments(parser: Parser) -> None:
    """Add the options of `infer`."""
    model = "a preset, a name on the hub, a config.json, a .gguf file, or a folder"
    parser.option("model", "MODEL", model, nargs="?")
    parser.option("-c --config", "FILE", "a run file with an inference part")
    engines = "vllm (default), sglang, tensorrt_llm, tgi, llamacpp or transformers"
    parser.option("-e --engine", "NAME", engines)
    for name, key, kind, text in KEYS:
        parser.option(name, "N" if kind is not str else "NAME", text, kind, dest=key)
    eager = "inference.enforce_eager"
    parser.flag("--enforce-eager", "no CUDA graphs", "store_const", const=True, dest=eager)
    gpus = "how many cards, where the engine does not say"
    parser.option("-g --gpus", "N", gpus, whole, dest="hardware.num_gpus")
    add_settings(parser)
    rows = "rows of the table of contexts and sequences"
    parser.option("--contexts", "N,N,...", rows, numbers, default=())
    parser.option("--concurrency", "N,N,...", "its columns", numbers, default=())
    parser.flag("--fewest-gpus", "over how many GPUs it must be cut at least")
    parser.flag("--largest-model", "which preset is the largest that this card serves")
    parser.flag("--explain", "show where every byte comes from instead")
    add_parts(parser)
    add_output(parser, "table", "json", "yaml", "html")
    add_check(parser)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers, 1 or more, separated by commas."""
    return tuple(whole(piece.strip()) for piece in text.split(","))


def run(args: argparse.Namespace) -> int:
    """Estimate the server of the options and report it; or answer the two questions."""
    data = _data(args)
    if args.largest_model and args.fewest_gpus:
        raise InputError("--largest-model and --fewest-gpus are two questions; ask one of them")
    if args.parts and not args.explain:
        raise InputError("--parts goes with --explain; add it, or leave --parts out")
    if args.largest_model:
        return _largest(args, data)
    if args.fewest_gpus:
        return _fewest(args, data)
    estimate = full_estimate(data)
    if args.explain:
        return show_explanation(args, estimate)
    table = (args.contexts, args.concurrency)
    return serving_answer(args, estimate, _explain_words(args), *table)


def _data(args: argparse.Namespace) -> dict[str, Any]:
    """The run file that the options describe."""
    if args.config is not None and args.model is not None:
        raise InputError("infer takes a MODEL or --config FILE, not both")
    data = _load_run(args.config) if args.config is not None else {}
    if args.model is not None:
        data["model"] = {"name": args.model}
    if "model" not in data and not args.largest_model:
        raise InputError("infer needs a MODEL; see gpu-mem-calc presets")
    inference = data.get("inference") or {}
    if not isinstance(inference, dict):
        raise InputError(f"inference={inference!r} must be an object")
    inference = {**inference, "engine": args.engine or inference.get("engine") or "vllm"}
    values = {key: getattr(args, key) for _, key, _, _ in KEYS}
    for key in ("inference.enforce_eager", "hardware.num_gpus"):
        values[key] = getattr(args, key)
    settings = [f"{key}={_text(value)}" for key, value in values.items() if value is not None]
    return with_settings({**data, "inference": inference}, (*settings, *args.settings))


def _load_run(path: str) -> dict[str, Any]:
    data = load_text(path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: a run file is an object with a 'model' section")
    return data


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _explain_words(args: argparse.Namespace) -> list[str]:
    """The command line that explains the same server."""
    words = ["infer", *([args.model] if args.model else ["--config", args.config])]
    words += ["--engine", args.engine] if args.engine else []
    flags = {key: name for name, key, _, _ in KEYS} | {"hardware.num_gpus": "--gpus"}
    for key, name in flags.items():
        value = getattr(args, key)
        words += [name, _text(value)] if value is not None else []
    words += ["--enforce-eager"] if getattr(args, "inference.enforce_eager") else []
    return [*words, *(w for one in args.settings for w in ("--set", one)), "--explain"]


def _fewest(args: argparse.Namespace, data: dict[str, Any]) -> int:
    from ..core.serving_changes import Server, fewest_gpus

    change = fewest_gpus(Server.of(full_estimate(data, replay=False)))
    _show_changes(args, [change] if change else [])
    return 0 if change is not None or not args.check else 1


def _largest(args: argparse.Namespace, data: dict[str, Any]) -> int:
    from ..core.serving_changes import largest_models

    changes = largest_models(data)
    _show_changes(args, changes)
    return 0 if changes or not args.check else 1


def _show_changes(args: argparse.Namespace, changes: list[Any]) -> None:
    import msgspec

    from ..report.data import to_json, to_yaml
    from ..report.serving import change_lines

    if args.format in ("json", "yaml"):
        data = msgspec.to_builtins(changes)
        write(to_json(data) if args.format == "json" else to_yaml(data), args.output)
    elif args.format == "table":
        show(list(change_lines(changes)), args.output)
    else:
        raise InputError(f"this answer has no --format {args.format}; choose table or json")
