"""argparse with errors in one sentence, and the options of every verb.

The options are rows of `options.json`: under the name of a verb, or of a group that verbs share.
"""

from __future__ import annotations

import argparse

from ..catalog.kept import read_table
from ..runfile.text.errors import InputError, nearest
from .words import AXES, FOLDER, known_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

# The messages of argparse stay English, as `error` below reads them; to look for others takes
# longer than to parse.
argparse._ = str  # type: ignore[attr-defined]
OPTIONS: dict[str, list[Any]] = read_table(f"{FOLDER}/options.json")
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
    found: str = read_table(f"{FOLDER}/examples.toml")[verb]
    return found


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help 80 columns wide, with the examples as written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=80)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `InputError`s and whose help shows examples as written."""

    def __init__(self, **rest: Any) -> None:
        self._formatter = HelpFormatter(rest.get("prog", ""))
        super().__init__(allow_abbrev=False, **rest)
        self._joined = ""

    def _get_formatter(self) -> argparse.HelpFormatter:
        """The same for all options, as argparse asks for one at each."""
        return self._formatter

    def format_help(self) -> str:
        """argparse's help, with the examples of the verb."""
        self.epilog = examples(self.prog.rpartition(" ")[2])
        self._formatter = HelpFormatter(self.prog)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise one sentence, where argparse prints the usage and exits."""
        import re

        verb = self.prog.rpartition(" ")[2]
        missing = re.match(r"the following arguments are required: (.+)", message)
        if missing:
            raise InputError(f"{verb} needs {missing[1]}; see {self.prog} --help")
        message = re.sub(r"^argument (?:-\w/)?(\S+): ", r"\1 ", message)
        raise InputError(message.replace("expected one argument", "needs a value"))

    def add(self, group: str, named: Mapping[str, object]) -> None:
        """Add the options of a verb or a group; `named` are the values that their help names."""
        for row in OPTIONS[group]:
            if isinstance(row, str):
                self.add(row, named)
                continue
            rest = {key: value for key, value in row.items() if key not in ("names", "joined")}
            if "type" in row:
                from . import values

                rest["type"] = getattr(values, row["type"])
            hidden = "help" not in row
            rest["help"] = argparse.SUPPRESS if hidden else row["help"].format_map(named)
            self.add_argument(*row["names"].split(), **rest)
            if row.get("joined"):  # more than one word may be its value: `quick llama3.1 8b`
                self._joined = row["names"]

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
        from shlex import join

        verb = self.prog.rpartition(" ")[2]
        word = next((one for one in unknown if one.startswith("-")), unknown[0])
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}; see {self.prog} --help")
        name = word.partition("=")[0]
        if name in ELSEWHERE and verb in ("quick", "calculate"):
            self.error(f"{name} {ELSEWHERE[name]}")
        if name in AXES and verb in ("quick", "calculate"):
            gpus = [] if any(word.startswith("--gpus") for word in words) else ["--gpus", "8"]
            instead = join([verb, *words, "--engine", "megatron", *gpus])
            self.error(f"{name} is an axis of Megatron; use gpu-mem-calc {instead}")
        known = [one for one in self._option_string_actions if one.startswith("--")]
        hint = nearest(name, known) or self._as_setting(word, words) or f"; see {self.prog} --help"
        other = next((one for one, options in OPTIONS_OF.items() if name in options), verb)
        if {verb, other} == {"quick", "infer"}:
            hint = f"; use gpu-mem-calc {join([other, *words])}"
        self.error(f"{name} is not an option of {verb}{hint}")

    def _as_setting(self, option: str, words: Sequence[str]) -> str:
        """`; use --set KEY=VALUE` where an unknown option is a key of the run file."""
        from ..runfile.own_names import is_setting

        name, _, value = option.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if "--set" not in self._option_string_actions or not is_setting(key):
            return ""
        behind = words[words.index(option) + 1 :] if option in words else ()
        later = [one for one in behind if one != "--"]  # in front of a command behind check
        given = value or next((one for one in later[:1] if not one.startswith("-")), "true")
        return f"; use --set {key}={given}"


def _refuse_card(word: str) -> None:
    """Raise one sentence for a card that is written beside the model, without its option."""
    from ..catalog.cards import find_card

    if len(word) > 1 and find_card(word) is not None:
        raise InputError(f"{word!r} is a card, not a part of the model's name; write --gpu {word}")


def option_name(name: str) -> str:
    """The option of one of argparse's names: `--seq-len` of `seq_len`."""
    return f"--{name.replace('_', '-')}"


def option_keys(verb: str) -> dict[str, str]:
    """The keys of the run file that options of a verb or a group set, each with its option."""
    rows = [row for row in OPTIONS[verb] if isinstance(row, dict)]
    return {row["dest"]: row["names"].split()[-1] for row in rows if "." in row.get("dest", "")}
