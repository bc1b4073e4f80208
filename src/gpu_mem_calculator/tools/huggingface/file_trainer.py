"""Which trainer a file of arguments is for: by the names that only one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..translation.arguments import argument_table
from ..translation.tools import TOOLS
from .trainers import TRAINER, TRL

MOST_NAMED = 3
# Names of earlier releases that tell the trainer, as older.toml lists them.
TELLING = {"max_seq_length": "trl.SFTTrainer", "reward_funcs": "trl.GRPOTrainer"}


def file_trainer(data: Mapping[str, Any]) -> tuple[str, str]:
    """The trainer, and how it was found."""
    shared = argument_table(TOOLS[TRAINER].arguments)
    own = {
        tool: argument_table(TOOLS[tool].arguments).keys() - shared.keys() for tool in TRL.values()
    }
    found = {tool: [key for key in data if key in names] for tool, names in own.items()}
    for key, tool in TELLING.items():
        if key in data:
            found[tool].append(key)
    best = max(found, key=lambda tool: len(found[tool]))
    if not found[best]:
        return TRAINER, "because no argument is TRL's own"
    return best, f"because of {', '.join(found[best][:MOST_NAMED])}"
