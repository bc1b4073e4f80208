"""argparse with errors in one sentence, and the options that verbs share."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from ..runfile.own_names import is_setting
from ..runfile.text.counts import whole_count
from ..runfile.text.errors import InputError, nearest
from .words import AXES, known_words

RUN_FILE = "a run file (JSON, YAML or TOML) or DeepSpeed's JSON; - reads standard input"
MOST = 10**9  # of a count
# Options of one of two commands that people look for at the other.
OPTIONS_OF = {
    "infer": ("--dp", "--ep", "--users"),
    "quick": ("--lora", "--qlora", "--recipe", "--zero", "--offload", "--optimizer", "--optim"),
}
# What people ask a training command for that it does not have, and where it is.
ELSEWHERE = {
    **{
        f"--{name}": f"is a trainer of TRL: gpu-mem-calc check trl {name} --model_name_or_path ..."
        for name in ("dpo", "grpo", "kto", "rloo", "reward")
    },
    "--unsloth": "is not modelled here: --qlora says what TRL needs, whose trainer it changes",
}


def examples(verb: str) -> str:
    """What the help of a verb ends with."""
    import tomllib
    from pathlib import Path

    text = Path(__file__).with_name("examples.toml").read_text(encoding="utf-8")
    found: str = tomllib.loads(text)[verb]
    return found


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help 80 columns wide, with the examples as written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=80)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `InputError`s and whose help shows examples as written."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, **rest)
        self._joined = ""

    def format_help(self) -> str:
        """argparse's help, with the examples of the verb."""
        self.epilog = examples(self.prog.rpartition(" ")[2])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise one sentence, where argparse prints the usage and exits."""
        verb = self.prog.rpartition(" ")[2]
        missing = re.match(r"the following arguments are required: (.+)", message)
        if missing:
            raise InputError(f"{verb} needs {missing[1]}; see {self.prog} --help")
        message = re.sub(r"^argument (?:-\w/)?(\S+): ", r"\1 ", message)
        raise InputError(message.replace("expected one argument", "needs a value"))

    def joins(self, name: str) -> None:
        """Let more than one word be the value of an argument: `quick llama3.1 8b`."""
        self._joined = name

    def option(self, names: str, metavar: str, text: str, kind: Any = None, **rest: Any) -> None:
        """Add an option with a value: its names, and `text` as its help; `kind` is its type."""
        self.add_argument(*names.split(), metavar=metavar, help=text, type=kind, **rest)

    def repeated(self, name: str, metavar: str, text: str, dest: str) -> None:
        """Add an option that may be repeated."""
        text += "; may be repeated"
        self.option(name, metavar, text, action="append", default=[], dest=dest)

    def flag(self, name: str, text: str, action: str = "store_true", **rest: Any) -> None:
        """Add an option without a value, with `text` as its help."""
        self.add_argument(name, action=action, help=text, **rest)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write the help; argparse would pass over an output that cannot be written."""
        if message:
            from .output import write

            write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise one sentence for a value that is none of the choices."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            name = action.option_strings[-1] if action.option_strings else action.dest
            hint = nearest(str(value), known)
            raise InputError([f"{name} {value!r} is not one of {', '.join(known)}{hint}"])

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """argparse's result; an unknown option is refused with the nearest known one."""
        words = known_words(args or (), self._option_string_actions)
        parsed, unknown = self.parse_known_args(words, namespace)
        first = getattr(parsed, self._joined, None) if self._joined else None
        if first and unknown and not any(word.startswith("-") for word in unknown):
            _refuse_card(unknown[-1].rstrip("?.!"))
            setattr(parsed, self._joined, " ".join((first, *unknown)))
            return parsed
        if unknown:
            self._refuse(unknown, args or ())
        return parsed

    def _refuse(self, unknown: Sequence[str], words: Sequence[str]) -> NoReturn:
        """Raise one sentence for those of the words that the verb does not have."""
        verb = self.prog.rpartition(" ")[2]
        word = next((one for one in unknown if one.startswith("-")), unknown[0])
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}; see {self.prog} --help")
        name = word.partition("=")[0]
        if name in ELSEWHERE and verb in ("quick", "calculate"):
            self.error(f"{name} {ELSEWHERE[name]}")
        if name in AXES and verb in ("quick", "calculate"):
            gpus = [] if any(word.startswith("--gpus") for word in words) else ["--gpus", "8"]
            instead = shlex.join([verb, *words, "--engine", "megatron", *gpus])
            self.error(f"{name} is an axis of Megatron; use gpu-mem-calc {instead}")
        known = [one for one in self._option_string_actions if one.startswith("--")]
        hint = nearest(name, known) or self._as_setting(word, words) or f"; see {self.prog} --help"
        other = next((one for one, options in OPTIONS_OF.items() if name in options), verb)
        if {verb, other} == {"quick", "infer"}:
            hint = f"; use gpu-mem-calc {shlex.join([other, *words])}"
        self.error(f"{name} is not an option of {verb}{hint}")

    def _as_setting(self, option: str, words: Sequence[str]) -> str:
        """`; use --set KEY=VALUE` where an unknown option is a key of the run file."""
        name, _, value = option.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if "--set" not in self._option_string_actions or not is_setting(key):
            return ""
        later = words[words.index(option) + 1 :] if option in words else ()
        given = value or next((one for one in later[:1] if not one.startswith("-")), "true")
        return f"; use --set {key}={given}"


def _refuse_card(word: str) -> None:
    """Raise one sentence for a card that is written beside the model, without its option."""
    from ..catalog.cards import find_card

    if len(word) > 1 and find_card(word) is not None:
        raise InputError(f"{word!r} is a card, not a part of the model's name; write --gpu {word}")


def whole(text: str) -> int:
    """A whole number, 1 or more."""
    return _count(text, least=1)


def tokens(text: str) -> int:
    """A number of tokens, 1 or more, of which k is 1,024."""
    return _count(text, least=1, tokens=True)


def _count(text: str, *, least: int, tokens: bool = False) -> int:
    number = whole_count(text, tokens=tokens)
    if number is None or number < least:
        such = ", such as 4096, 8k or 128k" if tokens else f", {least} or more"
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number{such}")
    if number > MOST:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at most {MOST:,}")
    return number


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    return _count(text, least=0)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return number


def memory(text: str) -> float:
    """The memory of a GPU in GB; the unit may be written."""
    return positive(re.sub(r"(?<=[0-9])\s*(gb|gib|g)$", "", text.strip(), flags=re.IGNORECASE))


def add_run(parser: Parser) -> None:
    """Add the options that name a run: --config, --preset, --model and --set."""
    parser.option("-c --config", "FILE", RUN_FILE)
    parser.option("-p --preset", "NAME", "a model, with default settings (gpu-mem-calc presets)")
    add_model(parser)
    add_settings(parser)


def add_source(parser: Parser) -> None:
    """Add SOURCE, a run file or a model, in place of --config."""
    text = "a run file (as --config), or a model (as gpu-mem-calc quick)"
    parser.option("source", "SOURCE", text, nargs="?")


def add_model(parser: Parser) -> None:
    """Add --model, for a DeepSpeed JSON, which names no model."""
    text = "the model, if FILE is DeepSpeed's JSON: a preset, a Hugging Face id or a path"
    parser.option("--model", "NAME", text)


def add_settings(parser: Parser) -> None:
    """Add --set, which may be repeated."""
    parser.repeated("--set", "KEY=VALUE", "change any key of the run file", "settings")


def add_allocator(parser: Parser) -> None:
    """Add --alloc-conf and --snapshot, for verbs that run a job."""
    parser.option("--alloc-conf", "TEXT", "PYTORCH_ALLOC_CONF, such as expandable_segments:True")
    parser.option("--snapshot", "FILE", "write a memory snapshot for pytorch.org/memory_viz")


def add_output(parser: Parser, *formats: str) -> None:
    """Add --format, the first of `formats` by default, and --output."""
    text = f"{', '.join(formats)} (default: {formats[0]})"
    parser.add_argument("-f", "--format", choices=formats, default=formats[0], help=text)
    parser.option("-o --output", "FILE", "write the answer to a file")


def add_long(parser: Parser) -> None:
    """Add --long."""
    parser.flag("--long", "show the whole answer: every phase, part and note")
