"""Print DeepSpeed's own table of the memory that ZeRO model states need.

It counts parameters, gradients and Adam's states, but no activations or
buffers: for a whole run use gpu-mem-calc calculate. DeepSpeed has no table for
stage 1; stage 2's is printed. The parameter count used is printed on stderr."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, NamedTuple

from ..runfile.text.errors import InputError, print_to_stderr
from .output import write

if TYPE_CHECKING:
    from ..runfile.find_model.model_source import ResolvedModel

NOT_GIVEN = "-1"  # the Helm chart's value for "not set"


def run(args: argparse.Namespace) -> int:
    """Print DeepSpeed's table of the stage."""
    from ..estimates.published.zero_tables import zero2_table, zero3_table

    total, largest = _counts(args)
    setup = (args.gpus_per_node, args.nodes, args.buffer_factor)
    if args.stage != "3":
        _show(args, total, None, zero2_table(total, *setup))
        return 0
    if largest is None:
        size = "the size of the largest single module (Llama-3.1-70B: 1.05e9)"
        needs = f"--largest-layer-parameters, {size}; or give --model-path"
        raise InputError(f"--stage 3 with --num-parameters needs {needs}")
    _show(args, total, largest, zero3_table(total, largest, *setup))
    return 0


def _show(args: argparse.Namespace, total: int, largest: int | None, table: str) -> None:
    """Write the table, or as JSON what it was computed from and its lines."""
    if args.format == "table":
        write(table, args.output)
        return
    from ..report.encode import answer, to_json

    data = {
        "stage": int(args.stage),
        "num_parameters": total,
        "largest_layer_parameters": largest,
        "nodes": args.nodes,
        "gpus_per_node": args.gpus_per_node,
        "buffer_factor": args.buffer_factor,
        "rows": table_rows(table),
    }
    write(to_json(answer(data)), args.output)


def table_rows(table: str) -> list[dict[str, str | float]]:
    """The rows of DeepSpeed's table: GB of CPU and GPU memory, and the options of each."""
    rows = re.findall(r"^\s*([0-9.]+)GB \|\s*([0-9.]+)GB \| (.*)$", table, re.MULTILINE)
    return [{"cpu_gb": float(c), "gpu_gb": float(g), "options": o.strip()} for c, g, o in rows]


def _counts(args: argparse.Namespace) -> tuple[int, int | None]:
    """Parameters of the model and of its largest module."""
    from ..runfile.text.counts import parameter_count

    if args.num_parameters is None and args.model_path is None:
        raise InputError("give one of --num-parameters N and --model-path P")
    largest = None
    if args.largest_layer_parameters not in (None, NOT_GIVEN):
        largest = parameter_count(args.largest_layer_parameters, "--largest-layer-parameters")
    if args.model_path is not None:
        counted = base_model_counts(args.model_path, args.settings)
        _print_count(args, counted)
        return counted.total, largest or counted.largest
    values = {"--set": args.settings, "--trust-remote-code": args.trust_remote_code}
    for option, value in values.items():
        if value:
            raise InputError(f"{option} needs --model-path; add it, or leave {option} out")
    total = parameter_count(args.num_parameters, "--num-parameters")
    if largest is not None and largest > total:
        more = f"more than --num-parameters {args.num_parameters}; swap them"
        raise InputError(f"--largest-layer-parameters {args.largest_layer_parameters} is {more}")
    return total, largest


def _print_count(args: argparse.Namespace, counted: BaseModelCount) -> None:
    """Print the parameter count to stderr; stdout has only the table."""
    from ..catalog.hub.names import printable_name

    model = counted.model
    what = ", ".join(filter(None, (printable_name(args.model_path), model.source)))
    lines = [f"{what}: {counted.total:,} parameters{counted.note}"]
    if args.trust_remote_code:
        family = f"the model is read as {model.arch.family}, a family that is known here"
        lines.append(f"--trust-remote-code: no code of the repository is run; {family}")
    if args.num_parameters is not None:
        lines.append(f"--num-parameters {args.num_parameters} is not used: --model-path wins")
    print_to_stderr(*lines)


class BaseModelCount(NamedTuple):
    """The parameters of a base model.

    - `total`, `largest`: parameters of the model, and of its largest module
    - `note`: what `total` leaves out, or who set it
    """

    total: int
    largest: int
    model: ResolvedModel
    note: str = ""


def base_model_counts(name: str, settings: list[str]) -> BaseModelCount:
    """Parameters of the base model and of its largest module.

    DeepSpeed's users build the model with transformers' `AutoModel`, which has no untied output
    head; a tied head is the embedding, which counts once.
    """
    from msgspec.structs import replace

    from ..runfile.find_model.model_source import find_model
    from ..runfile.read import with_settings
    from ..tools.read import read

    file = read(with_settings({"model": {"name": name}}, settings)).file
    model = find_model(file.model)
    extra = tuple(w for w in model.arch.head_extra if not w.name.startswith("lm_head"))
    base = replace(model.arch, head=None, head_extra=extra)
    total, largest = base.num_parameters, base.largest_layer_parameters
    tower = base.tower_parameters
    if model.parameters_given:
        return BaseModelCount(model.parameters_given, largest, model, ", as --set says")
    complete = total == model.arch.num_parameters
    note = "" if complete else " without its output head"
    note += f", {tower:,} of them in the vision tower" if tower else ""
    return BaseModelCount(total + tower, largest, model, note)
