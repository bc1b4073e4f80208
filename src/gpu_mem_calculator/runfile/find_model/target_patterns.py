"""PEFT's target_modules as a pattern of module paths (peft 0.21.2 tuners/tuners_utils.py
check_target_module_exists: re.fullmatch of the whole path).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ...models.arch.arch import Arch
from ..text.errors import InputError, quoted

KEY = "training.lora.target_modules"
# Where the language model is in a model with a vision tower, by family.
TEXT_PARTS = ("model.language_model.", "language_model.model.", "model.text_model.", "model.")
MOST_CHARACTERS, MOST_REPEATS = 1000, 8  # of a pattern; its time grows with both
REPEAT = re.compile(r"(?<!\\)[*+{]")
REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]")  # may take exponential time


def matched_names(pattern: str, arch: Arch, known: Collection[str]) -> list[str]:
    """Names of the projections whose paths a pattern matches, in every layer that has them."""
    rule = _compiled(pattern)
    found: dict[str, set[bool]] = {}
    for path in _paths(arch, known):
        name = path.rpartition(".")[2]
        found.setdefault(name, set()).add(_matches(rule, path, arch))
    names = sorted(name for name, hits in found.items() if True in hits)
    if not names:
        present = f"it has {', '.join(sorted(known))}"
        raise InputError(
            f"{KEY}={quoted(pattern)} matches no projection of {arch.family}; {present}"
        )
    parts = [name for name in names if False in found[name]]
    if parts:
        why = f"adapters on {parts[0]} of some layers alone are not modelled; name the projections"
        raise InputError(f"{KEY}={quoted(pattern)}: {why}")
    return names


def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern that takes little time."""
    if (
        len(pattern) > MOST_CHARACTERS
        or REPEATED_GROUP.search(pattern)
        or len(REPEAT.findall(pattern)) > MOST_REPEATS
    ):
        raise InputError(f"{KEY}={quoted(pattern)} is too complex; name the projections in a list")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise InputError(f"{KEY}={quoted(pattern)} is not a pattern of Python's re") from None


def _paths(arch: Arch, known: Collection[str]) -> Iterator[str]:
    """Paths of all projections."""
    for weight in arch.weights():
        path = weight.name.removesuffix(".weight")
        if path != weight.name and path.rpartition(".")[2] in known:
            yield path


def _matches(rule: re.Pattern[str], path: str, arch: Arch) -> bool:
    if not arch.tower:
        return rule.fullmatch(path) is not None
    rest = path.removeprefix("model.")
    return any(rule.fullmatch(f"{part}{rest}") for part in TEXT_PARTS)
