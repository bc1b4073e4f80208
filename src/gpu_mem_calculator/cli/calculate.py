"""Estimate the GPU memory of a training run: does it fit, and what takes how much."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from ..core.calculator import Estimate, full_estimate
from ..core.errors import tell
from .output import show, write
from .parser import Parser, RunSource, add_output, add_run
from .recorded import add_recorded, recorded_source, recorded_words
from .serving import serving_answer

EXAMPLES = """\
examples:
  gpu-mem-calc calculate --config run.json
  gpu-mem-calc calculate --preset llama2-7b --set hardware.num_gpus=8 \\
    --set engine.type=fsdp
  gpu-mem-calc calculate --config run.json --format html --output report.html
  gpu-mem-calc calculate --config run.json --check   (in CI)
  gpu-mem-calc calculate --config ds_config.json --model llama2-7b \\
    --set hardware.num_gpus=8
  gpu-mem-calc calculate --function my_project.train:model_and_batch"""


def arguments(parser: Parser) -> None:
    """The options."""
    add_run(parser)
    add_recorded(parser)
    add_output(parser, "table", "json", "yaml", "html")
    add_check(parser)


def add_check(parser: Parser) -> None:
    """--check."""
    parser.add_argument("--check", action="store_true",
                        help="exit 1, with a sentence, where the run does not fit")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Estimate and report."""
    estimate = estimate_source(recorded_source(args))
    name = args.config or args.preset or args.function or args.record
    return show_estimate(args, estimate, ["explain", *recorded_words(args)], name)


def estimate_source(source: RunSource) -> Estimate:
    """The estimate of a run, with what was assumed on the way to it."""
    found = full_estimate(source.data)
    assumed = [*source.assumed, *found.result.assumed]
    return replace(found, result=replace(found.result, assumed=assumed))


def show_estimate(
    args: argparse.Namespace, estimate: Estimate, words: list[str], name: str,
    notes: tuple[str, ...] = (),
) -> int:  # fmt: skip
    """Show an estimate as the options ask; the exit code is the verdict with --check."""
    if estimate.served:
        return serving_answer(args, estimate, words)
    if args.format == "table":
        from ..report.text import text_report

        show(list(text_report(estimate, words, notes)), args.output)
    else:
        write(_render(args.format, estimate), args.output)
    if not args.check:
        return 0
    from ..report.headline import sentence

    text = sentence(estimate, name)
    if args.format == "table" or args.output:
        write(text)
    else:  # the data on stdout stays as it is
        tell(text, begins="")
    return 0 if estimate.result.fits_on_gpu else 1


def _render(form: str, estimate: Estimate) -> str:
    if form == "html":
        from ..report.html import html_report

        page: str = html_report(estimate)
        return page
    from ..report.data import as_data, to_json, to_yaml

    data = as_data(estimate.result)
    return to_json(data) if form == "json" else to_yaml(data)
