"""A command and a reading without secrets: every tool's reader is called through these."""

from __future__ import annotations

import re

from msgspec.structs import replace

from ...ledger.secrets import REASON, hidden, hidden_words, hide, without_secrets
from .command import Command
from .reading import Reading

OBJECT = re.compile(r"=['\"]?[\[{]*\{.*", re.DOTALL)  # the JSON that an option has as its value


def safe_command(command: Command) -> Command:
    """The command with the secrets in its words and variables replaced."""
    environment = hidden(dict(command.environment))
    return replace(command, words=tuple(hidden_words(command.words)), environment=environment)


def safe_reading(reading: Reading) -> Reading:
    """The reading without secrets: their keys are free, and what they were is said nowhere.

    An object that is not modelled is named without what is in it, which may be anything.
    """
    dropped: list[str] = []
    reading.run = without_secrets(reading.run, dropped)
    for name in dict.fromkeys(dropped):
        if not any(key.lstrip("-").replace("-", "_") == name for key in reading.keys):
            reading.keys[name] = "free"
        reading.assumed.append(f"{name}: {REASON}")
    reading.assumed = [hide(one) for one in reading.assumed]
    reading.problems = [hide(one) for one in reading.problems]
    reading.limits = [
        replace(one, key=hide(OBJECT.sub("={...}", one.key)), why=hide(one.why))
        for one in reading.limits
    ]
    return reading
