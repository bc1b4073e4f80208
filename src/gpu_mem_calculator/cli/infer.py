"""Estimate a server: weights, KV cache, and how many users fit at which context."""

from __future__ import annotations

import argparse
from typing import Any

from ..estimates.calculator import Estimate, full_estimate, with_other_cards
from ..estimates.serving.infer_command import InferCommand, value_text
from ..runfile.inference_config import InferenceConfig
from ..runfile.read import with_settings
from ..runfile.resolve.resolve_inference import find_server
from ..runfile.resolve.serving_question import question_keys
from ..runfile.text.errors import InputError, quoted
from ..runfile.text.text_data import load_text
from ..serving import OF_GGUF, USUAL, server_names
from .calculate import add_check
from .explain import add_parts, show_explanation
from .export import check_export, export_estimate
from .fit_check import save_run
from .output import show, write
from .parser import Parser, add_long, add_output, add_settings, memory, positive, tokens, whole
from .serving import serving_answer

UTILIZATION = "inference.gpu_memory_utilization"
EXPERTS = "inference.expert_parallel_size"
LONGEST, USERS = "inference.max_seq_len", "inference.batch_size"
ALL = "all"  # --ep without a number
# Names of methods that have one usual format, as servers' users say them.
METHODS = {"gptq": "gptq_int4", "bitsandbytes": "nf4", "bnb": "nf4"}


def weight_format(text: str) -> str:
    """The format of a quantization method, or the format itself."""
    return METHODS.get(text.lower(), text)


# Options that set one key of the run file each: names, key, type, help.
KEYS: tuple[tuple[str, str, Any, str], ...] = (
    ("--gpu", "hardware.gpu", str, "GPU model: 4090, h100, ... (gpu-mem-calc gpus)"),
    ("--gpu-mem", "hardware.gpu_memory_gb", memory, "memory of one GPU in GB (default: 80)"),
    ("-g --gpus", "hardware.num_gpus", whole, "number of GPUs (default: tp × pp × dp)"),
    ("--nodes", "hardware.num_nodes", whole, "number of nodes that have these GPUs"),
    ("--tp", "inference.tensor_parallel_size", whole, "tensor-parallel size"),
    ("--pp", "inference.pipeline_parallel_size", whole, "pipeline-parallel size"),
    ("--dp", "inference.data_parallel_size", whole, "data-parallel size (replicas)"),
    ("--max-model-len", LONGEST, tokens, "longest sequence: 8192, 128k"),
    ("--users --batch-size", USERS, whole, "concurrent users to serve"),
    ("--prompt-len", "inference.prompt_len", tokens, "prompt tokens of one user"),
    ("--new-tokens", "inference.new_tokens", tokens, "generated tokens of one user"),
    ("--dtype", "inference.dtype", str, "bf16 (default), fp16 or fp32"),
    (
        "--quantization",
        "inference.quantization",
        weight_format,
        "of the weights: fp8, awq, q4_k_m, ...",
    ),
    ("--kv-cache-dtype", "inference.kv_cache_dtype", str, "auto (default), fp8, int8, int4"),
    (
        "--gpu-memory-utilization",
        UTILIZATION,
        positive,
        "share of the GPU that the server may use, such as 0.9",
    ),
    ("--max-num-seqs", "inference.max_num_seqs", whole, "most concurrent sequences"),
    (
        "--max-num-batched-tokens",
        "inference.max_num_batched_tokens",
        tokens,
        "most tokens in one forward pass",
    ),
)


def arguments(parser: Parser) -> None:
    """Add the options of `infer`."""
    model = "a model's name, a Hugging Face id, a config.json, a .gguf file, or a folder"
    parser.option("model", "MODEL", model, nargs="?")
    parser.joins("model")
    parser.option("--model", "NAME", "the same as MODEL", dest="model_name")
    parser.option("-c --config", "FILE", "a run file with an inference section")
    engines = "vllm (default), sglang, tensorrt_llm, tgi, llamacpp or transformers"
    parser.option("-e --engine", "NAME", engines)
    for names, key, kind, text in KEYS:
        parser.option(names, "NAME" if kind in (str, weight_format) else "N", text, kind, dest=key)
    parser.option("--context", "N", "tokens of one user: 8192, 128k", tokens)
    experts = "shard the experts over N ranks (default: over all)"
    parser.option("--ep", "N", experts, dest=EXPERTS)
    eager = "inference.enforce_eager"
    parser.flag("--enforce-eager", "no CUDA graphs", "store_const", const=True, dest=eager)
    add_settings(parser)
    rows = "contexts (rows) of the table of users"
    parser.option("--contexts", "N,N,...", rows, lengths, default=())
    parser.option("--concurrency", "N,N,...", "users (columns) of that table", numbers, default=())
    parser.flag("--fewest-gpus", "find the smallest number of GPUs that works")
    parser.flag("--largest-model", "find the largest preset that these GPUs can serve")
    parser.flag("--explain", "show where every byte comes from")
    add_parts(parser)
    add_output(parser, "table", "json", "yaml", "html")
    add_long(parser)
    add_check(parser)


def lengths(text: str) -> tuple[int, ...]:
    """Numbers of tokens, separated by commas."""
    return tuple(tokens(piece.strip()) for piece in text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers, 1 or more, separated by commas."""
    return tuple(whole(piece.strip()) for piece in text.split(","))


def run(args: argparse.Namespace) -> int:
    """Estimate the server of the options and report it; or answer the two questions."""
    data = _data(args)
    if args.export:
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
    estimate = with_other_cards(full_estimate(data))
    save_run(args, estimate)
    if args.export:
        from ..report.serving.words import sentence

        return export_estimate(args, estimate, sentence(estimate))
    if args.explain:
        return show_explanation(args, estimate)
    asked = _command(args, data)
    return serving_answer(args, estimate, asked, args.contexts, args.concurrency)


def _data(args: argparse.Namespace) -> dict[str, Any]:
    """The run file that the options describe."""
    if args.model is not None and args.model_name is not None:
        raise InputError("MODEL and --model are the same; give one of them")
    args.model = args.model or args.model_name
    if args.config is not None and args.model is not None:
        raise InputError("infer takes a MODEL or --config FILE, not both")
    data = _load_run(args.config) if args.config is not None else {}
    if args.model is not None:
        data["model"] = {"name": args.model}
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
    return _with_experts(run, getattr(args, EXPERTS))


def _usual_server(data: dict[str, Any]) -> str:
    """The server of GGUF files for one or a repository of them, else the usual one."""
    model = data.get("model")
    name = str(model.get("name", "")) if isinstance(model, dict) else ""
    return OF_GGUF if name.lower().endswith("gguf") else USUAL


def _keys(args: argparse.Namespace, inference: dict[str, Any]) -> dict[str, str]:
    """The keys that the options set, as `--set` writes them."""
    names = [key for _, key, _, _ in KEYS] + ["inference.enforce_eager"]
    values = {key: getattr(args, key) for key in names}
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
    keys |= _keys(args, data["inference"])
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
        from ..tools.read import read

        mesh = resolve(read(data), headers=False).run.mesh
        size = str(int(mesh.tp * mesh.dp))
        if size == "1":
            raise InputError("--ep needs several GPUs to shard the experts over; add --gpus 8")
        return with_settings(data, [f"{EXPERTS}={size}"])
    sizes = {key for section in ("inference", "hardware") for key in data.get(section, {})}
    if not sizes & {"tensor_parallel_size", "data_parallel_size", "num_gpus"}:
        data = with_settings(data, [f"hardware.num_gpus={size}"])
    return with_settings(data, [f"{EXPERTS}={size}"])


def _load_run(path: str) -> dict[str, Any]:
    data = load_text(path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: a run file is an object with a 'model' section")
    return data


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
    import msgspec

    from ..report.data import to_json, to_yaml

    if args.format in ("json", "yaml"):
        from ..report.serving.lists import server_facts

        facts = server_facts(server) if server is not None else {}
        data = [{**msgspec.to_builtins(change), **facts} for change in changes]
        write(to_json(data) if args.format == "json" else to_yaml(data), args.output)
    elif args.format == "table":
        show(lines, args.output)
    else:
        raise InputError(f"this answer has no --format {args.format}; choose table or json")
