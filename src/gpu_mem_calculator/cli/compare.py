"""Compare two runs, cards or releases: part by part, and what made the difference.

A and B are each a run file, another tool's file, a command in quotes, or a
model's name. With two --at or two --gpu, one run or command is enough."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..runfile.text.errors import InputError
from ..tools.read import Door, read
from .output import show_answer
from .parser import option_keys
from .releases import known_releases

CARD, AT = "hardware.gpu", "--at"
KEYS = [key for key in option_keys("compare") if key != CARD]
# Options with a value, before the command.
WITH_VALUE = (AT, "--gpu", "-g", "--gpus", "-m", "--gpu-mem", "--set", "-f", "--format", "-o")


def run(args: argparse.Namespace) -> int:
    """Estimate both, and report how they differ."""
    from ..estimates.calculator import full_estimate
    from ..report.comparison import compared, comparison_data, comparison_lines, summary
    from ..report.lines import with_pasted

    cards, releases = getattr(args, CARD), args.at
    pairs = [(option, given) for option, given in ((AT, releases), ("--gpu", cards)) if given]
    for option, given in pairs:
        if len(given) > 2:
            raise InputError(f"compare takes two {option}, not {len(given)}; leave some out")
    two = [option for option, given in pairs if len(given) == 2]
    if len(two) > 1:
        raise InputError("compare takes two --at or two --gpu, not both; give one of them once")
    sources = [args.sources] * 2 if two else _two_sources(args.sources)
    if not all(sources):
        raise InputError("compare needs a run or a command behind its options")
    estimates = [
        full_estimate(_run(args, words, _of(releases, side), _of(cards, side)))
        for side, words in enumerate(sources)
    ]
    names = {AT: releases, "--gpu": cards}[two[0]] if two else [" ".join(one) for one in sources]
    found = compared((names[0], names[1]), estimates[0], estimates[1])
    show_answer(
        args, lambda: comparison_data(found), with_pasted(comparison_lines(found), summary(found))
    )
    return 0


def _of(given: Sequence[str] | None, side: int) -> str | None:
    """What an option says of one side: its only value is for both."""
    return given[min(side, len(given) - 1)] if given else None


def _two_sources(words: Sequence[str]) -> list[list[str]]:
    """A and B as words of a command."""
    if len(words) != 2:
        quotes = "; put a command in quotes" if len(words) > 2 else ""
        raise InputError(f"compare needs A and B, or two {AT} or --gpu; {len(words)} given{quotes}")
    return [[one] for one in words]


def _run(
    args: argparse.Namespace, words: Sequence[str], releases: str | None, card: str | None
) -> dict[str, Any]:
    """The run file of one side."""
    from ..runfile.read import with_settings
    from ..tools.reading.tools import CARD_KEYS
    from ..tools.releases.apply import with_releases

    known = known_releases([releases] if releases else [])
    data = _read(words, Door(releases=known))
    if card and data.get("hardware"):
        data["hardware"] = {k: v for k, v in data["hardware"].items() if k not in CARD_KEYS}
    given = {key: getattr(args, key) for key in KEYS if getattr(args, key) is not None}
    settings = [f"{key}={value}" for key, value in given.items()]
    settings += [f"{CARD}={card}"] if card else []
    if known:
        data = with_releases(data, known.named)
    return with_settings(data, (*settings, *args.settings))


def _read(words: Sequence[str], door: Door) -> dict[str, Any]:
    """The run file of a file, a command or a model's name."""
    from .main import is_source
    from .sizes import choose_model

    first = words[0]
    if len(words) == 1 and not is_source(first):
        return choose_model(first).with_settings("engine.type=pytorch").data()
    return read(first if len(words) == 1 else list(words), door).run


def separated(words: Sequence[str]) -> list[str]:
    """The words with `--` between the options of `compare` and the command, where two releases or
    cards stand in front of one.
    """
    from .check import split_words

    split = split_words(words, (*WITH_VALUE, "--output"))
    names = [word.partition("=")[0] for word in split[: split.index("--")]]
    return split if names.count(AT) > 1 or names.count("--gpu") > 1 else list(words)
