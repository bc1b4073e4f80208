"""Options that a user's script has beside those of its trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...ledger.secrets import is_secret
from ..reading.options import parsed_value
from ..reading.reading import Reading
from ..translation.arguments import Values, tables
from .trainers import ScriptArguments

TABLES = tables(__file__)
# Names that scripts give to the model and to the length of a sequence.
CONFIG = "config"
MODEL_NAMES: list[str] = TABLES["model_names"]
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
LENGTH_NAMES: list[str] = TABLES["length_names"]
OTHER_NAMES = {name: ours for ours, names in TABLES["other_names"].items() for name in names}
# Names that say where data and results are, how long it trains, and what is logged;
# DeepSpeed's file is none of them.
PLAIN = re.compile(
    r"(?!deepspeed).*(data|file|dir|path|output|log|wandb|save|seed|epoch|lr|rate|decay|warmup|name|column"
    r"|split|hub|token|template|prompt_type|worker|project|local_rank|local-rank|debug|verbose"
    r"|reward|metric|config|sample|shuffle|resume|betas?|eps|tags?|version|stream|cache).*"
)


def split_own(
    words: Sequence[str], arguments: ScriptArguments
) -> tuple[list[str], dict[str, list[str]]]:
    """The words of known options, and the options that the trainer's script does not have."""
    known: list[str] = []
    own: dict[str, list[str]] = {}
    values: list[str] = known
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, sign, value = word.partition("=")
            plain = name.lstrip("-").replace("-", "_")
            is_known = (
                plain in arguments.table
                or plain.removeprefix("no_") in arguments.syntax.switches
                or name in arguments.syntax.aliases
            )
            if is_known and word.startswith("--"):
                values = known
                known.append(word)
            else:
                before = own.get(plain, []) if plain == CONFIG else []  # each is a file
                values = own[plain] = [*before, *([value] if sign else [])]
        else:
            values.append(word)
    return known, own


def own_values(own: Mapping[str, list[str]]) -> dict[str, Any]:
    """The values of own options; an option that stands alone is on."""
    return {
        name: True if not words else parsed_value(words[0] if len(words) == 1 else words)
        for name, words in own.items()
    }


def known_names(own: Values, table: Values) -> dict[str, Any]:
    """Own options that have a usual meaning, under the names of TRL's scripts."""
    found: dict[str, Any] = {}
    models = [value for name, value in own.items() if name in MODEL_NAMES]
    if models:  # of several, one may be the script's own word for an architecture
        on_hub = (one for one in models if HUB_NAME.fullmatch(str(one)))
        found["model_name_or_path"] = next(on_hub, models[0])
    for name, value in own.items():
        if name in MODEL_NAMES:
            continue
        if name in LENGTH_NAMES:
            found.setdefault("max_length" if "max_length" in table else "max_seq_length", value)
        elif name in OTHER_NAMES:
            found.setdefault(OTHER_NAMES[name], value)
    return found


def add_own_limit(reading: Reading, own: Values, shown: Values | None, script: str) -> None:
    """Name the options whose meaning is not known, in one limit.

    - shown: the options that the script's text declares; None where it cannot be read. What the
      text passes on to the trainer was followed, so the others do not reach it.
    """
    meant = (*MODEL_NAMES, *LENGTH_NAMES, *OTHER_NAMES)
    unclear = []
    for name, value in own.items():
        plain = name.removeprefix("no_")  # argparse's BooleanOptionalAction
        read = name in meant or (shown is not None and (name in shown or plain in shown))
        reading.keys[f"--{name}"] = "memory" if name in meant else "free"
        takes_none = PLAIN.fullmatch(name) or is_secret(name, value)
        if not read and (shown is not None or not takes_none):
            unclear.append(f"--{name}")
            reading.keys[f"--{name}"] = "refused"
    if unclear:
        declared = f"neither {script} nor its trainer declares it"
        reading.limit(
            ", ".join(unclear), f"{script}'s own, not read" if shown is None else declared
        )


def add_dropped_limit(reading: Reading, values: Values, script: str) -> None:
    """Name options of adapters that have no effect here, because nothing says that adapters are
    used: a script's own text would say it.
    """
    if values.get("use_peft") or values.get("peft_config"):
        return
    dropped = [name for name in values if name.startswith(("lora_", "use_dora", "use_rslora"))]
    dropped = [name for name in dropped if f"--{name}" in reading.keys]
    for name in dropped:
        reading.keys[f"--{name}"] = "refused"
    if dropped:
        names = ", ".join(f"--{name}" for name in dropped)
        why = f"whether {script} trains adapters is not shown; without them is estimated"
        fix = "say --use_peft, or have the script at hand"
        reading.limit(names, f"{why}, {fix}", "less")
