"""Parts of a trainer that are not modelled beside an engine: the rest is estimated without them,
and a limit names each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.reading import Limit, Reading

PLAIN = "transformers.Trainer"
REFERENCED = ("trl.DPOTrainer", "trl.KTOTrainer")
ONLINE = ("trl.GRPOTrainer", "trl.RLOOTrainer")


def leave_out(reading: Reading, values: Mapping[str, Any]) -> None:
    """Leave out what the trainer's engine cannot have, with a limit for each.

    - values: the value of every argument of the trainer
    """
    program = reading.run["program"]
    engine = _engine(program, values)
    tool, training = program["tool"], reading.run.setdefault("training", {})
    if engine:
        _reference(reading, program, values, engine)
        if tool in ONLINE:
            _generation(reading, program, values, engine)
    _evaluation(reading, program, values, engine)
    if not training:
        reading.run.pop("training")


def _engine(program: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """DeepSpeed, FSDP, or empty for one GPU and DDP."""
    kind = str((program.get("accelerate") or {}).get("distributed_type", "")).upper()
    if program.get("deepspeed") or kind == "DEEPSPEED":
        return "DeepSpeed"
    return "FSDP" if kind == "FSDP" or values.get("fsdp") else ""


def _reference(
    reading: Reading, program: Mapping[str, Any], values: Mapping[str, Any], engine: str
) -> None:
    """The reference model of DPO and KTO, and of GRPO with beta."""
    tool = program["tool"]
    if tool not in REFERENCED and not (tool in ONLINE and values.get("beta")):
        return
    reading.run["training"]["reference_model"] = False
    if program.get("peft"):
        why = f"its forward pass without adapters is not modelled under {engine}, and left out"
        adds = "activations"  # a pass without gradients keeps a part of what one with them keeps
    else:
        why = f"a second copy of the weights, sharded by {engine}, is not modelled and left out"
        adds = "4*weights+activations"
    key = f"{tool}'s reference model"
    reading.limits.append(Limit(key=key, why=why, could="more", adds=adds))


def _generation(
    reading: Reading, program: dict[str, Any], values: Mapping[str, Any], engine: str
) -> None:
    """The completions of GRPO and RLOO: only the update is estimated."""
    prompt, tokens = program["data"].get("prompt"), values.get("max_completion_length")
    if not isinstance(prompt, int) or not isinstance(tokens, int):
        return
    reading.run["training"] |= {
        "generation": None,
        "seq_len": prompt + tokens,
        "labelled_tokens": tokens,
    }
    elsewhere = values.get("use_vllm") and values.get("vllm_mode") == "server"
    why = f"generation is not modelled under {engine}; only the update is estimated"
    key = f"{program['tool']}'s completions"
    reading.limits.append(Limit(key=key, why=why, could="either" if elsewhere else "more"))


def _evaluation(
    reading: Reading, program: dict[str, Any], values: Mapping[str, Any], engine: str
) -> None:
    """An evaluation that may take more than a step."""
    runs = str(values.get("eval_strategy") or "no") != "no" or values.get("eval_on_start")
    batch, trained = values["per_device_eval_batch_size"], values["per_device_train_batch_size"]
    if not runs or (program["tool"] == PLAIN and not engine):
        return
    numbers = isinstance(batch, int) and isinstance(trained, int)
    if numbers and batch > trained:
        args = program["args"]
        args.pop("eval_strategy", None)
        args.pop("eval_on_start", None)
        why = f"an evaluation of more sequences than the {trained} of a step is left out"
        key = f"per_device_eval_batch_size={batch}"
        # of each sequence it keeps a part of what a step keeps for backward
        adds = f"{-(-batch // trained)}*activations"
        reading.limits.append(Limit(key=key, why=why, could="more", adds=adds))
