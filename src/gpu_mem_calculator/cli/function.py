"""--function and --with: the user's model and batch, for verbs that run a job."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from ..runfile.text.errors import InputError


def function_words(args: argparse.Namespace) -> list[str]:
    """The words that name the same function on another command line."""
    if not args.function:
        return []
    return ["--function", args.function, *(word for one in args.values for word in ("--with", one))]


def function_values(args: argparse.Namespace) -> dict[str, Any]:
    """The values of --with by name."""
    if args.values and not args.function:
        raise InputError("--with is for the arguments of --function; add that, or leave it out")
    return named_values(args.values)


def named_values(texts: Sequence[str]) -> dict[str, Any]:
    """The values of NAME=VALUE texts: JSON's numbers, true, false and null, else text."""
    values, problems = {}, []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            problems.append(f"--with {text!r} must be NAME=VALUE, such as n_layer=24")
            continue
        values[name] = scalar(value)
    if problems:
        raise InputError(problems)
    return values


def scalar(text: str) -> Any:
    """A JSON scalar, or the text itself."""
    try:
        # NaN and the infinities, which JSON does not have, stay text
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else value
