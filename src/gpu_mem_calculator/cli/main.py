"""`gpu-mem-calc`: finds the verb, runs it, and reports bad input as sentences.

Only the module of the verb is imported, so that starting stays fast.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PROG = "gpu-mem-calc"
# Verb -> its line in the help; the module of the same name in this package runs it.
VERBS = {
    "calculate": "the memory of a training run, from a run file or a preset",
    "quick": "the same from a size such as 7B, or a model's name",
    "infer": "a server: weights, room for the cache, users at which context",
    "validate": "every problem of a run file at once",
    "explain": "each entry of an estimate: formula, numbers, when, source",
    "trace": "the real model's code without a GPU, every tensor counted",
    "measure": "the same job on one real GPU, which plays one rank",
    "serve": "the web page and its API, on this machine",
    "backtest": "predictions against measured runs",
    "deepspeed": "DeepSpeed's own table of ZeRO model states",
    "presets": "the models that have a name",
    "gpus": "the cards that have a name",
    "schema": "the run file's JSON Schema",
}
LASTING = ("trace", "measure", "serve", "backtest")  # verbs that run for more than a moment
EXAMPLES = """\
examples:
  gpu-mem-calc quick 7 --gpus 8 --engine deepspeed
  gpu-mem-calc infer llama3.1-8b --gpu h100-80gb-sxm
  gpu-mem-calc calculate --config run.json
  gpu-mem-calc calculate --config run.json --set training.batch_size=2 --check
  gpu-mem-calc explain --config run.json"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0: done; 1: --check and it does not fit; 2: bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        problems = getattr(error, "problems", None)
        if problems is None:
            raise
        from ..core.errors import print_to_stderr

        print_to_stderr(*problems)
        return 2


def _run(words: list[str]) -> int:
    from .output import write

    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return _verb(words[1], ["--help"])
        write(_help())
        return 0
    if words[0] in ("--version", "-V"):
        from .. import __version__

        write(f"{PROG} {__version__}")
        return 0
    return _verb(words[0], words[1:])


def _verb(verb: str, words: list[str]) -> int:
    if verb not in VERBS:
        from ..core.errors import InputError, nearest

        what = "option" if verb.startswith("-") else "command"
        hint = nearest(verb, [*VERBS, "--help", "--version"]) or f"; see {PROG} --help"
        raise InputError(f"{verb!r} is not a known {what}{hint}")
    from importlib import import_module

    from .output import check_files
    from .parser import Parser

    if verb not in LASTING:
        import gc

        gc.disable()  # a command ends before its garbage matters
    module = import_module(f".{verb}", __package__)
    parser = Parser(prog=f"{PROG} {verb}", description=module.__doc__, epilog=module.EXAMPLES)
    module.arguments(parser)
    try:
        args = parser.parse_args(words)
    except SystemExit as end:  # --help has printed itself
        return int(end.code or 0)
    check_files(args)
    code: int = module.run(args)
    return code


def _help() -> str:
    verbs = "\n".join(f"  {name:<10} {line}" for name, line in VERBS.items())
    return (
        f"usage: {PROG} COMMAND ...\n\n"
        "How much GPU memory a language model takes to train or serve, exactly and explained.\n\n"
        f"commands:\n{verbs}\n\n{EXAMPLES}\n\n"
        f"options:\n  --version  print the version\n"
        f"  --help     this page; {PROG} COMMAND --help for one command\n\n"
        "exit codes: 0 done; 1 with --check, it does not fit; 2 bad input"
    )


if __name__ == "__main__":
    raise SystemExit(main())
