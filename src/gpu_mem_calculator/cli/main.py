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
    "quick": "training memory of a model, by its name or a size such as 7B",
    "calculate": "memory of a run file, a preset or your own code",
    "infer": "serving: weights, KV cache, and how many users at which context",
    "plan": "which set-up: all that fit on your GPUs, fastest first, and their cost",
    "check": "whether a command fits, before you start it: put this in front of it",
    "diagnose": "why a run died, by what it printed",
    "compare": "two runs, commands, cards or releases, part by part",
    "validate": "check a run file and list every problem",
    "convert": "write a run as a file or a command of another tool",
    "explain": "every allocation of an estimate: formula, numbers, lifetime, source",
    "trace": "run the real model's code on fake tensors, without a GPU",
    "measure": "run one rank of the job on one real GPU, and measure it",
    "serve": "start the web page and its API on this machine",
    "mcp": "the same answers for agents, by the Model Context Protocol",
    "backtest": "compare predictions with measured runs",
    "deepspeed": "DeepSpeed's own table of memory for ZeRO model states",
    "presets": "list the models that are known by name",
    "gpus": "list the GPUs that are known by name",
    "schema": "print the JSON Schema of a run file",
}
# Other words for a verb.
OTHER_WORDS = {
    **dict.fromkeys(("train", "training", "finetune", "fine-tune", "sft", "estimate"), "quick"),
    **dict.fromkeys(("inference", "serving"), "infer"),
    **dict.fromkeys(("models", "list", "list-models"), "presets"),
    **dict.fromkeys(("cards", "list-gpus"), "gpus"),
    "web": "serve",
}
RUN_FILES = (".json", ".yaml", ".yml", ".toml")  # endings of run files
LASTING = (
    "plan",
    "trace",
    "measure",
    "serve",
    "mcp",
    "backtest",
)  # verbs that run for more than a moment
# Verbs that take a command behind `--`, and the module that parts it from the options.
SEPARATED = {one: one for one in ("check", "compare", "diagnose")} | {"backtest": "diagnose"}
LISTS = ("presets", "gpus")  # verbs that list rows of the catalogue, without msgspec
EXIT_CODES = """\
exit codes: 0 done; 1 it does not fit (check, --check); 2 bad input; 3 cannot
tell (check, --check); 70 a fault of gpu-mem-calc; 74 output cannot be written;
130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (`EXIT_CODES`).

    Without `argv` it runs this process's own command, and may end the process itself.
    """
    if argv is not None:
        return _exit_code(list(argv))
    from .lean_imports import find_own_modules

    find_own_modules()
    from .streams import die_on_interrupt, open_streams

    words = sys.argv[1:]
    open_streams()
    if words and OTHER_WORDS.get(words[0], words[0]) not in LASTING[1:]:
        die_on_interrupt()  # while plan searches, it shows what it has found
    code = _exit_code(words)
    if "threading" not in sys.modules:
        import os

        os._exit(code)  # nothing is left to do but freeing every object, which takes longer
    return code


def _exit_code(words: list[str]) -> int:
    """Run one command; whatever ends it is reported in sentences, and decides its exit code."""
    try:
        code = _run(words)
        from .output import flush_stdout

        flush_stdout()
        return code
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        from .failures import report_failure

        return report_failure(error, words)


def _run(words: list[str]) -> int:
    from .output import write

    if not words and _is_given():
        words = ["-"]
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return _verb(OTHER_WORDS.get(words[1], words[1]), ["--help"])
        write(_help())
        return 0
    if words[0] in ("--version", "-V", "version"):
        from .. import __version__
        from ..pytorch.replay.native_library import library

        write(f"{PROG} {__version__} (replay in {'C' if library() else 'Python'})")
        return 0
    return _verb(*_natural(words))


def _natural(words: list[str]) -> tuple[str, list[str]]:
    """The verb that the words mean, with its words; it may be left out, or have another name."""
    first, rest = words[0], words[1:]
    verb = OTHER_WORDS.get(first, first)
    if verb not in VERBS:
        if is_source(first):
            return _verb_of_text(words)
        if first.startswith("-") and any(not word.startswith("-") for word in rest):
            return "quick", words
        return ("quick", words) if _is_model(first) else (first, rest)
    if verb in ("quick", "calculate", "explain") and rest and not rest[0].startswith("-"):
        if first in OTHER_WORDS and is_source(rest[0]):
            return "calculate", rest
        if verb != "quick" and not is_source(rest[0]):
            return "quick", [*rest, *(["--explain"] if verb == "explain" else [])]
    return verb, rest


def _is_given() -> bool:
    """Whether there is a text on standard input."""
    if sys.stdin is None or sys.stdin.isatty():
        return False
    from .anything import is_given

    return is_given()


def _verb_of_text(words: list[str]) -> tuple[str, list[str]]:
    """The verb for a text without one; a run file, a script and a command are estimated."""
    import os

    first, rest = words[0], words[1:]
    if first != "-" and (first.lower().endswith(RUN_FILES) or not os.path.isfile(first)):
        return "calculate", words
    from .anything import verb_of

    verb, word = verb_of(first)
    return verb, [word, *rest]


def is_run_file(word: str) -> bool:
    """Whether a word names a file, or standard input, and not a model."""
    import os

    return word == "-" or word.lower().endswith(RUN_FILES) or os.path.isfile(word)


def is_source(word: str) -> bool:
    """Whether a word names a file, or is a command in quotes, and no model."""
    if is_run_file(word):
        return True
    from ..tools.read import is_command

    return is_command(word) and not _is_spoken(word)


def _is_spoken(text: str) -> bool:
    """Whether several words are a model's name: `llama 3.1 8b`, which has no option and no path."""
    words = text.split()
    if len(words) < 2 or any("/" in word or word.startswith("-") for word in words):
        return False
    from ..catalog.variants import variant

    return variant(text) is not None


def _is_model(word: str) -> bool:
    """Whether a word names a model; a word that is nearly a verb does not."""
    from ..runfile.text.errors import InputError, nearest

    if word.startswith("-") or nearest(word, VERBS):
        return False
    from .sizes import choose_model

    try:
        choose_model(word)
    except InputError as error:
        if "/" in word or "\\" in word:
            return True
        neither = f"{word!r} is neither a command nor a known model"
        hint = error.problems[0].partition("; ")[2]
        raise InputError(f"{neither}; {hint or f'see {PROG} --help'}") from None
    return True


def _verb(verb: str, words: list[str]) -> int:
    if verb not in VERBS:
        from ..runfile.text.errors import InputError, nearest

        what = "option" if verb.startswith("-") else "command"
        hint = nearest(verb, [*VERBS, "--help", "--version"]) or f"; see {PROG} --help"
        raise InputError(f"{verb!r} is not a known {what}{hint}")
    from importlib import import_module

    if verb not in LASTING:
        import gc

        gc.disable()  # a command ends before its garbage matters
    from .lean_msgspec import import_argparse, import_msgspec

    import_argparse()
    if verb not in LISTS:
        import_msgspec()
    from .output import check_files
    from .parser import Parser

    module = import_module(f".{verb}", __package__)
    parser = Parser(prog=f"{PROG} {verb}", description=module.__doc__)
    parser.add(verb, getattr(module, "NAMED", {}))
    if verb in SEPARATED:
        words = import_module(f".{SEPARATED[verb]}", __package__).separated(words)
    elif verb != "trace":  # these two may start the words as they are
        from ..ledger.secrets import hidden_words, printed_words

        words = hidden_words(words)
        words = [printed_words([one])[0] if " " in one else one for one in words]
    try:
        args = parser.parse_args(words)
    except SystemExit as end:  # --help has printed itself
        return int(end.code or 0)
    if verb != "check" and "check" in args:
        from .fit_check import check_options

        check_options(args)
    check_files(args)
    if verb != "check" and getattr(args, "nvidia_smi", None):
        from .this_machine import take_pasted

        take_pasted(args)
    code: int = module.run(args)
    return code


def _help() -> str:
    from .parser import examples

    verbs = "\n".join(f"  {name:<10} {line}" for name, line in VERBS.items())
    return (
        f"usage: {PROG} COMMAND ...\n\n"
        "Estimates the GPU memory that training or serving a language model takes.\n\n"
        f"commands:\n{verbs}\n\n{examples('main')}\n\n"
        f"options:\n  --version  print the version, and whether the replay runs in C\n"
        f"  --help     this page; {PROG} COMMAND --help for one command\n\n"
        f"{EXIT_CODES}\n"
        'With --format json, errors are JSON on stdout, too: {"error": {"problems": [...]}}'
    )


if __name__ == "__main__":
    raise SystemExit(main())
