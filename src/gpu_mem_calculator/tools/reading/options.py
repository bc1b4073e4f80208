"""Reads the options of a command line by a table of the tool's arguments, with argparse."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from ...runfile.text.errors import InputError, nearest
from ..translation.arguments import FOLDER, ArgumentTable, argument_data
from ..translation.releases import has_lock, order, span_of


class OptionSyntax(Struct, frozen=True, kw_only=True):
    """How a tool's arguments are written on a command line.

    - `flags`: have no value, and a `--no-` form; `switches`: may have a value (`--bf16 true`)
    - `lists`: have several values; `repeated`: may be given several times
    - `aliases`: other names, each with the argument that it means
    - `renamed`: names of other releases, each with its name in the table
    - `abbreviations`: whether the first letters of a name are enough, as argparse has it
    - `lock`: the table whose lock says since when there is a name; empty where none does
    """

    flags: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    repeated: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = {}
    renamed: Mapping[str, str] = {}
    abbreviations: bool = True
    lock: str = ""


class ParsedOptions(Struct, kw_only=True):
    """The options of a command by the names of their arguments, the other words, and a sentence
    for each option that the tool does not have.

    - unknown: the words of those options
    - renamed: names of other releases that were given, each with its name in the table
    """

    values: dict[str, Any]
    positional: list[str]
    problems: list[str]
    unknown: list[str] = []
    renamed: Mapping[str, str] = {}

    @property
    def written(self) -> list[str]:
        """The names of the arguments as they were given."""
        older = set(self.renamed.values())
        return [*self.renamed, *(name for name in self.values if name not in older)]

    @property
    def strays(self) -> list[str]:
        """Words that belong to no option; after an option that is not known, its values, which
        may be secrets, are not told from them.
        """
        return [] if self.problems else self.positional


def option_syntax(path: str, folder: Path) -> OptionSyntax:
    """The syntax in a table of arguments, with that of the tables it inherits from."""
    data = argument_data(path, folder)
    base = option_syntax(data["base"], folder) if "base" in data else OptionSyntax()
    own = data.get("options", {})
    sets = {
        name: getattr(base, name) | frozenset(own.get(name, ()))
        for name in ("flags", "switches", "lists", "repeated")
    }
    return OptionSyntax(
        **sets,
        aliases={**base.aliases, **own.get("aliases", {})},
        renamed={**base.renamed, **data.get("renamed", {})},
        abbreviations=own.get("abbreviations", base.abbreviations),
        lock=(folder / path).relative_to(FOLDER).as_posix() if has_lock(path, folder) else "",
    )


def parse_options(
    title: str, words: Sequence[str], table: ArgumentTable, syntax: OptionSyntax
) -> ParsedOptions:
    """The options in the words. Dashes and underscores in names are the same."""
    parser = _OptionParser(prog=title, add_help=False, allow_abbrev=syntax.abbreviations)
    for name in table:
        _add(parser, name, syntax, table)
    whole = [_with_alias(word, table, syntax) for word in words]
    normal = _without_words([_normal(word, syntax) for word in whole], syntax)
    meant = _abbreviations(normal, table, syntax)
    normal = [meant.get(word, word) for word in normal]
    known, unknown = parser.parse_known_args(normal)
    options = [word for word in unknown if word.startswith("-")]
    return ParsedOptions(
        values={name: parsed_value(value) for name, value in vars(known).items()},
        positional=[word for word in unknown if not word.startswith("-")],
        problems=[_unknown(title, word, [*table, *syntax.aliases]) for word in options],
        unknown=options,
        renamed={
            **{old: syntax.renamed[old] for old in map(_plain, words) if old in syntax.renamed},
            **{_plain(old): _plain(new) for old, new in meant.items()},
        },
    )


def _with_alias(word: str, table: ArgumentTable, syntax: OptionSyntax) -> str:
    """A word that begins other names of one argument alone, with its own name: SGLang's
    --tensor-para is --tensor-parallel-size, which is tp_size.
    """
    begin = _plain(word)
    named = any(name.replace("-", "_").startswith(begin) for name in table)
    if not begin or named or begin in syntax.renamed or not syntax.abbreviations:
        return word
    meant = {new for old, new in syntax.aliases.items() if _plain(old).startswith(begin)}
    _, sign, value = word.partition("=")
    return f"--{meant.pop()}{sign}{value}" if len(meant) == 1 else word


def _abbreviations(
    words: Sequence[str], table: ArgumentTable, syntax: OptionSyntax
) -> dict[str, str]:
    """Words that begin several names, each with the oldest of these: the only one where such a word
    could be written.
    """
    found: dict[str, str] = {}
    if not (syntax.abbreviations and syntax.lock):
        return found
    names = {name.replace("-", "_"): name for name in table}
    for word in words:
        begin = _plain(word)
        longer = [name for name in names if begin and name.startswith(begin)]
        if len(longer) < 2 or begin in names:
            continue
        since = {name: order(span_of(syntax.lock, names[name])[0]) for name in longer}
        oldest = [name for name in longer if since[name] == min(since.values())]
        if len(oldest) == 1:
            found[word] = f"--{oldest[0]}{word[len(begin) + 2 :]}"
    return found


def renamed_note(parsed: ParsedOptions) -> list[str]:
    """One sentence with the names of other releases that a command has; none where it has none."""
    names = ", ".join(f"--{old} is --{new}" for old, new in parsed.renamed.items())
    return [f"names of other releases: {names}"] if names else []


def _without_words(words: Sequence[str], syntax: OptionSyntax) -> list[str]:
    """The words with `--flag True` as the flag alone, and `--flag False` in its `--no-` form: flags
    of today had a value in earlier releases, and none is followed by such a word. The same of
    `--flag=True`.
    """
    result: list[str] = []
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        if name in syntax.flags and value.lower() in ("true", "false"):
            result.append(f"--{name}" if value.lower() == "true" else f"--no_{name}")
            continue
        flag = result[-1] if result else ""
        said, name = word.lower(), flag.removeprefix("--")
        if said in ("true", "false") and flag.startswith("--") and name in syntax.flags:
            result[-1] = flag if said == "true" else f"--no_{name}"
        else:
            result.append(word)
    return result


FORMATTER = argparse.HelpFormatter("", width=80)


class _OptionParser(argparse.ArgumentParser):
    def _get_formatter(self) -> argparse.HelpFormatter:
        """The same for all arguments: argparse asks for one at each, and there is no help."""
        return FORMATTER

    def error(self, message: str) -> NoReturn:
        """Raise one sentence, where argparse prints the usage and exits."""
        raise InputError(f"{self.prog}: {message.removeprefix('argument ')}")


def _normal(word: str, syntax: OptionSyntax) -> str:
    """An option with the argument's own name; its value is kept as written."""
    name, sign, value = word.partition("=")
    if name in syntax.aliases:
        name = f"--{syntax.aliases[name]}"
    if not name.startswith("--") or len(name) == 2:
        return word
    plain = name[2:].replace("-", "_")
    return f"--{syntax.renamed.get(plain, plain)}{sign}{value}"


def _plain(word: str) -> str:
    """The name of an option, without its value."""
    return word.partition("=")[0].lstrip("-").replace("-", "_") if word.startswith("--") else ""


def _add(
    parser: argparse.ArgumentParser, name: str, syntax: OptionSyntax, table: ArgumentTable
) -> None:
    own: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    written = name.replace("-", "_")
    turned = name in syntax.flags or name in syntax.switches
    if turned and f"no_{written}" not in table:
        parser.add_argument(f"--no_{written}", action="store_false", **own)
    if name in syntax.flags:
        own |= {"action": "store_true"}
    elif name in syntax.switches:
        own |= {"nargs": "?", "const": True}
    elif name in syntax.lists:
        own |= {"nargs": "*"}
    elif name in syntax.repeated:
        own |= {"action": "append"}
    parser.add_argument(f"--{written}", **own)


def parsed_value(text: Any) -> Any:
    """A value as a program would convert it: a number, true or false, JSON, else the text."""
    if isinstance(text, list):
        return [parsed_value(one) for one in text]
    if not isinstance(text, str):
        return text
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return float(text) if lowered.strip("+-.0123456789e_") == "" else text
    except ValueError:
        return text


def _unknown(title: str, word: str, known: Iterable[str]) -> str:
    """The sentence for an option that the tool does not have, spelled as the tool spells names."""
    names = list(known)
    plain = word.partition("=")[0].lstrip("-").replace("-", "_")
    if any("-" in name.lstrip("-") for name in names):
        plain = plain.replace("_", "-")
    hint = nearest(plain, names) or "; leave it out"
    return f"{'--' if word.startswith('--') else '-'}{plain} is not an option of {title}{hint}"
