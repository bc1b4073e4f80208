"""The words of a command line as people type them, turned into options that exist."""

from __future__ import annotations

import os
import re

from ..catalog.kept import read_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

FOLDER = os.path.dirname(__file__)
TABLES: Mapping[str, Any] = read_table(f"{FOLDER}/tables.json")
# Axes of Megatron, as options of training commands.
AXES: Mapping[str, str] = TABLES["axes"]
# Other spellings of options: those of Hugging Face, of the servers, and short ones.
ALIASES = {
    word: tuple(option.split())
    for option, words in TABLES["aliases"].items()
    for word in words.split()
}
# Names of a context, which training commands call a sequence.
CONTEXTS: frozenset[str] = frozenset(TABLES["contexts"].split())
RANKS: frozenset[str] = frozenset(TABLES["ranks"].split())  # of LoRA, and of QLoRA if asked for
# Options that may lack their value: what a value looks like, and the value without one. Of
# --checkpointing, the names of policies are values, too.
COMMAND = "--launch"  # what argparse gets in the place of a `--` whose command is an option's value
OPTIONAL: Mapping[str, tuple[str, str]] = TABLES["optional"]
CARDS = r"([0-9]+)\s*[x×*]\s*(?=[a-z0-9])(.+)"  # 2x4090


def known_words(words: Sequence[str], known: Collection[str]) -> list[str]:
    """The words with other spellings of options replaced by those that are `known`."""
    replaced: list[str] = []
    ends = (place for place, word in enumerate(words) if word in ("--", COMMAND))
    end = next(ends, len(words))
    behind, words = list(words[end:]), _ranked(words[:end])
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name.startswith("--"):
            replaced += [*_option(name, known), value]
        else:
            replaced += _option(word, known)
    if behind:
        return replaced + behind
    return _with_values(_cards(_axes(replaced, known), known), known)


def _ranked(words: Sequence[str]) -> Sequence[str]:
    """`--qlora --rank 64` as `--qlora 64`: the rank is that of the recipe."""
    plain = [word.partition("=")[0].replace("_", "-") for word in words]
    four_bits = next((name for name in ("--qlora", "--load-in-4bit") if name in plain), None)
    if four_bits is None or not any(name in RANKS for name in plain):
        return words
    place = plain.index(four_bits)
    if place + 1 < len(words) and words[place + 1].isdecimal():
        return words  # it has a rank already
    named = zip(words, plain, strict=True)
    renamed = ["--qlora" + word[len(name) :] if name in RANKS else word for word, name in named]
    return renamed[:place] + renamed[place + 1 :]


def _option(name: str, known: Collection[str]) -> tuple[str, ...]:
    """A word as a known option; any other word as it is."""
    if not name.startswith("--") or name in known:
        return (name,)
    plain = name.replace("_", "-").lower()
    if plain in known:
        return (plain,)
    alias = ALIASES[plain] if plain in ALIASES else _engine(plain.removeprefix("--"))
    if plain in CONTEXTS and "--context" not in known:
        alias = ("--seq-len",)
    return alias if alias and (alias[0] in known or alias[0] in AXES) else (name,)


def _engine(word: str) -> tuple[str, ...]:
    """An engine or a server that is named as an option of its own, by any of its spellings."""
    from ..serving import spellings as servers
    from ..training.engines import shorthands, spellings

    named = (*spellings(), *shorthands(), *servers())
    name = next((one for one in named if one.replace("_", "-") == word), "")
    return ("--engine", name) if name else ()


def _axes(words: list[str], known: Collection[str]) -> list[str]:
    """Megatron's axes as settings, where the command trains with it and has no such option."""
    if not any(word.lower().startswith("megatron") for word in words):
        return words
    replaced: list[str] = []
    for word in words:
        axis = AXES.get(replaced[-1]) if replaced and replaced[-1] not in known else None
        if axis:
            replaced[-1:] = ["--set", f"{axis}={word}"]
        else:
            replaced.append(word)
    return replaced


def _cards(words: list[str], known: Collection[str]) -> list[str]:
    """`--gpu 2x4090` and `--gpus 2x4090` as a number of GPUs and a card."""
    replaced: list[str] = []
    for word in words:
        asked = replaced[-1:] in (["--gpu"], ["--gpus"], ["-g"]) and "--gpus" in known
        cards = re.fullmatch(CARDS, word, re.IGNORECASE) if asked else None
        if cards:
            replaced[-1:] = ["--gpus", cards[1], "--gpu", cards[2]]
        else:
            replaced.append(word)
    return replaced


def _with_values(words: list[str], known: Collection[str]) -> list[str]:
    """Options that may lack their value, each with one."""
    replaced: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word in OPTIONAL and word in known:
            pattern, default = OPTIONAL[word]
            if word == "--checkpointing":
                from ..runfile.resolve.recompute_policies import LEVELS, NAMES

                pattern = "|".join((pattern, *map(str, LEVELS), *NAMES))
            given = bool(waiting) and re.fullmatch(pattern, waiting[0], re.IGNORECASE)
            word += f"={waiting.pop(0) if given else default}"
        replaced.append(word)
    return replaced
