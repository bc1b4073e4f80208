"""Which trainer a command starts: by TRL's subcommand, by the script's text, by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...core.errors import InputError
from .script_text import ScriptText

TRAINER = "transformers.Trainer"
# TRL's subcommands, and the words in a script's name.
TRL: Mapping[str, str] = {
    "sft": "trl.SFTTrainer",
    "dpo": "trl.DPOTrainer",
    "kto": "trl.KTOTrainer",
    "grpo": "trl.GRPOTrainer",
    "rloo": "trl.RLOOTrainer",
    "reward": "trl.RewardTrainer",
}
# Trainers by their class.
CLASSES: Mapping[str, str] = {
    **{one.removeprefix("trl."): one for one in TRL.values()},
    **dict.fromkeys(("Trainer", "Seq2SeqTrainer"), TRAINER),
}
NEARER = ("GRPOTrainer", "RLOOTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer", "SFTTrainer")
# TRL's trainers that are not modelled, by the words in a script's name.
OTHERS: Mapping[str, str] = {
    "orpo": "trl.ORPOTrainer",
    "cpo": "trl.CPOTrainer",
    "ppo": "trl.PPOTrainer",
    "gkd": "trl.GKDTrainer",
    "bco": "trl.BCOTrainer",
    "xpo": "trl.XPOTrainer",
    "prm": "trl.PRMTrainer",
    "tpo": "trl.TPOTrainer",
    "ssd": "trl.SSDTrainer",
    "sdft": "trl.SDFTTrainer",
    "sdpo": "trl.SDPOTrainer",
    "online_dpo": "trl.OnlineDPOTrainer",
    "nash_md": "trl.NashMDTrainer",
    "distillation": "trl.DistillationTrainer",
    "gold": "trl.GOLDTrainer",
    "async_grpo": "trl.AsyncGRPOTrainer",
}
FINE_TUNING = "use trl.SFTTrainer for plain fine-tuning of the same model"
CLASS_NAME = re.compile(r"([A-Z]\w*)Trainer")


def trainer_of_name(name: str) -> str | None:
    """The trainer that a script's name means, such as `run_dpo.py`; None where it means none."""
    parts = re.split(r"[^a-z0-9]+", name.lower().removesuffix(".py"))
    joined = "_".join(parts)
    for word, tool in OTHERS.items():
        if re.search(rf"(^|_){word}(_|$)", joined):
            return tool
    found = [tool for word, tool in {**TRL, "gspo": TRL["grpo"]}.items() if word in parts]
    return found[0] if found else None


def trainer_of_text(script: ScriptText, path: str) -> str | None:
    """The trainer that a script makes; None where its text shows none."""
    if any(one.partition(".")[0] == "unsloth" for one in script.imports):
        return "unsloth"
    made = {one.name for one in script.calls}
    for tool in OTHERS.values():
        if tool.removeprefix("trl.") in made:
            return tool
    for found in (made, script.imports):
        for name in (*NEARER, *CLASSES):
            if name in found:
                return CLASSES[name]
    other = sorted(one for one in made if CLASS_NAME.fullmatch(one))
    if other:
        raise InputError(f"{path} makes a {other[0]}, which is not modelled; {FINE_TUNING}")
    return None
