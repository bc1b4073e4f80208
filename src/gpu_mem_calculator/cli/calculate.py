"""Estimate the GPU memory of a training run: does it fit, and what takes how much."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from ..core.calculator import Estimate, full_estimate
from ..core.errors import print_to_stderr
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
    """Add the options of `calculate`."""
    add_run(parser)
    add_recorded(parser)
    add_output(parser, "table", "json", "yaml", "html")
    add_check(parser)


def add_check(parser: Parser) -> None:
    """Add --check."""
    parser.flag("--check", "exit 1, with a sentence, where the run does not fit")


def run(args: argparse.Namespace) -> int:
    """Estimate the run of the options, and report it."""
    estimate = estimate_source(recorded_source(args))
    name = args.config or args.preset or args.function or args.record
    return show_estimate(args, estimate, ["explain", *recorded_words(args)], name)


def estimate_source(source: RunSource) -> Estimate:
    """The estimate of a run; its `assumed` also has what was assumed in reading the source."""
    estimate = full_estimate(source.data)
    assumed = [*source.assumed, *estimate.result.assumed]
    return replace(estimate, result=replace(estimate.result, assumed=assumed))


def show_estimate(
    args: argparse.Namespace,
    estimate: Estimate,
    words: list[str],
    name: str,
    notes: tuple[str, ...] = (),
) -> int:
    """Show an estimate in the format of the options.

    Returns the exit code: with --check, 1 where the run does not fit. `words` are the command line
    that explains the run, `name` is what the --check sentence calls it.
    """
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
    else:  # stdout has only the data
        print_to_stderr(text, begins="")
    return 0 if estimate.result.fits_on_gpu else 1


def _render(format_name: str, estimate: Estimate) -> str:
    if format_name == "html":
        from ..report.html import html_report

        page: str = html_report(estimate)
        return page
    from ..report.data import as_data, to_json, to_yaml

    data = as_data(estimate.result)
    return to_json(data) if format_name == "json" else to_yaml(data)
