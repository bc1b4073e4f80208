"""Check a run file and list every problem."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec.structs import replace

from ..tools.read import Asked
from .output import show, write
from .run_source import run_source


def run(args: argparse.Namespace) -> int:
    """Read and resolve the file; every problem is raised, one line each, or as JSON.

    A DeepSpeed JSON without a model is checked with a stand-in: what holds for any model.
    """
    from ..runfile.resolve.resolve import resolve

    args.preset = None
    source = run_source(args, needs_model=False)
    alone = source.is_deepspeed and "model" not in source.run
    asked = source
    if alone:
        from ..tools.deepspeed.read import ANY_MODEL

        asked = replace(source, run={"model": ANY_MODEL, **source.run})
    resolved = resolve(asked.file, headers=False)
    if args.format == "json":
        write(_as_json(args.config, source, resolved.meant), args.output)
        return 0
    write(
        f"✓ {args.config} is valid"
        + (" without its model; to check the model too, add --model NAME" * alone)
    )
    lists = (
        ("means: ", ", ", resolved.meant),
        ("assumed: ", "; ", (*source.notes, *(resolved.assumed if resolved.meant else ()))),
        ("takes no memory: ", ", ", source.no_memory),
    )
    said = [(label, separator.join(words)) for label, separator, words in lists if words]
    if said:
        from ..report.lines import wrap_lines

        show([line for label, text in said for line in wrap_lines(label, text)])
    return 0


def _as_json(name: str, source: Asked, meant: tuple[str, ...]) -> str:
    """A valid file as JSON; `means`: the keys that its program means."""
    from ..report.encode import answer, to_json

    facts: dict[str, Any] = {"file": name, "valid": True, "assumed": list(source.notes)}
    if meant:
        facts["means"] = list(meant)
    facts |= {"takes_no_memory": list(source.no_memory), "run": source.run}
    return to_json(answer(facts))
