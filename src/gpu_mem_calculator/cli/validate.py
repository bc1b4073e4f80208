"""Check a run file and name every problem at once."""

from __future__ import annotations

import argparse

from ..report.lines import wrap_lines
from .output import show, write
from .parser import Parser, add_model, add_settings, run_source

EXAMPLES = """\
examples:
  gpu-mem-calc validate run.json
  gpu-mem-calc validate run.json --set parallelism.tensor_parallel_size=4
  gpu-mem-calc validate ds_config.json --set hardware.num_gpus=8"""


def arguments(parser: Parser) -> None:
    """Add the options of `validate`."""
    parser.option("config", "FILE", "a run file (JSON, YAML or TOML), or DeepSpeed's JSON")
    parser.set_defaults(preset=None)
    add_model(parser)
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Read and resolve the file; every problem is raised, one line each.

    A DeepSpeed JSON without a model is checked with a stand-in: what holds for any model.
    """
    from ..core.resolve import resolve
    from ..core.runfile import read

    source = run_source(args, needs_model=False)
    alone = source.deepspeed and "model" not in source.data
    data = source.data
    if alone:
        from ..formats.deepspeed_reader import ANY_MODEL

        data = {"model": ANY_MODEL, **data}
    resolve(read(data), headers=False)
    write(f"✓ {args.config} is valid" + (", its model left aside: add --model NAME" * alone))
    lists = (("assumed: ", "; ", source.assumed), ("takes no memory: ", ", ", source.no_memory))
    lines = [
        line
        for label, separator, words in lists
        if words
        for line in wrap_lines(label, separator.join(words))
    ]
    if lines:
        show(lines)
    return 0
