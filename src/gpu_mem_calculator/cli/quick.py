"""Estimate from a size (7, 7B, 350M; a plain number is billions) or a name."""

from __future__ import annotations

import argparse

from ..core.calculator import full_estimate
from .calculate import add_check, show_estimate
from .explain import add_parts, show_explanation
from .parser import Parser, add_output, add_settings, positive, whole
from .sizes import choose_mesh, choose_model, choose_precision

EXAMPLES = """\
examples:
  gpu-mem-calc quick 7 --gpus 8 --engine deepspeed
  gpu-mem-calc quick llama3.1-8b --gpus 8 --engine fsdp --gpu h100-80gb-sxm
  gpu-mem-calc quick 70 --gpus 64 --gpu-mem 80 --engine megatron
  gpu-mem-calc quick qwen2.5-7b --gpu rtx-4090 --set training.lora.r=16 \\
    --set training.quantization=nf4"""


def arguments(parser: Parser) -> None:
    """Add the options of `quick`."""
    parser.option("size", "SIZE", "7, 7B, 350M, or a preset's name")
    parser.option("-g --gpus", "N", "default: 1", whole, default=1)
    engines = "pytorch (default), deepspeed (ZeRO-2), fsdp, megatron"
    parser.option("-e --engine", "NAME", engines, default="pytorch")
    parser.option("-m --gpu-mem", "GB", "memory of one GPU as marketed (default: 80)", positive)
    parser.option("--gpu", "NAME", "a card from gpu-mem-calc gpus")
    parser.option("-d --dtype", "NAME", "bf16 (default), fp16 or fp32")
    add_settings(parser)
    parser.flag("--explain", "show the formulas instead, as gpu-mem-calc explain does")
    add_parts(parser)
    add_output(parser, "table", "json", "yaml", "html")
    add_check(parser)


def run(args: argparse.Namespace) -> int:
    """Choose what the options leave open, estimate, and report the choices."""
    choice = choose_model(args.size)
    memory = args.gpu_mem or (None if args.gpu else 80)
    chosen = {
        "engine.type": args.engine,
        "engine.zero_stage": 2 if args.engine.lower() == "deepspeed" else None,
        "training.dtype": args.dtype,
        "hardware.num_gpus": args.gpus,
        "hardware.gpu": args.gpu,
        "hardware.gpu_memory_gb": memory and f"{memory:g}",
    }
    choice = choice.with_settings(*(f"{k}={v}" for k, v in chosen.items() if v is not None))
    choice = choose_precision(choice.with_settings(*args.settings))
    known = None
    if str(choice.data()["engine"]["type"]).lower().startswith("megatron"):
        choice, known = choose_mesh(choice, tuple(args.settings))
    estimate = known or full_estimate(choice.data())
    if args.explain:
        return show_explanation(args, estimate)
    return show_estimate(args, estimate, _explain_words(args), args.size, choice.notes)


def _explain_words(args: argparse.Namespace) -> list[str]:
    """The command line that explains the same run."""
    words = ["quick", args.size]
    options = {
        "--gpus": (args.gpus, 1),
        "--engine": (args.engine, "pytorch"),
        "--gpu-mem": (args.gpu_mem, None),
        "--gpu": (args.gpu, None),
        "--dtype": (args.dtype, None),
    }
    for name, (value, default) in options.items():
        if value != default:
            words += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    return [*words, *(w for s in args.settings for w in ("--set", s)), "--explain"]
