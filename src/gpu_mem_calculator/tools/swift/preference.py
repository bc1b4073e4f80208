"""`swift rlhf`: which trainer of TRL each type is near, and where it differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import tables
from .tuners import training_lora

TABLES = tables(__file__)
PAIRS = {"dpo": "trl.DPOTrainer", "cpo": "trl.DPOTrainer", "orpo": "trl.DPOTrainer"}
PAIRS |= {"simpo": "trl.DPOTrainer", "kto": "trl.KTOTrainer", "rm": "trl.RewardTrainer"}
NO_REFERENCE = ("cpo", "orpo", "simpo")
GRPO = "trl.GRPOTrainer"
LOGITS = (
    "log-probabilities come from all logits of labelled tokens; "
    "the estimate is TRL's, which computes them in tiles"
)
VALUES = "the value head's trainer is ms-swift's own; the estimate is TRL's, with a score alone"
USUAL_PROMPT = 1024
USUAL_BETA = 0.04  # arguments/rlhf_args.py _init_grpo
# Arguments of GRPO, and TRL's names.
GRPO_ARGS: dict[str, str] = TABLES["grpo_args"]
VLLM_ARGS: dict[str, str] = TABLES["vllm_args"]


def preference_run(reading: Reading, program: Section, values: Mapping[str, Any]) -> Section:
    """Complete a program of rlhf; returns keys of `training` beside it."""
    if values["method"] != "rlhf":
        if "peft" in program:
            program["peft"]["task_type"] = "CAUSAL_LM"
        return {}
    kind = values["rlhf_type"]
    if kind == "grpo":
        return _grpo(reading, program, values)
    if kind not in PAIRS:
        reading.run["program"] = {"tool": f"swift.{kind}"}
        return {}
    program["tool"] = PAIRS[kind]
    if "data" in program:
        program["args"]["max_length"] = program["data"]["seq_len"]
    why = VALUES if kind == "rm" else LOGITS
    reading.limits.append(Limit(key=f"rlhf_type={kind}", why=why, could="more"))
    if kind == "rm" and values["use_liger_kernel"]:
        program["args"]["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    training = _adapters(program, values)
    if kind in NO_REFERENCE or values["reference_free"]:
        training["reference_model"] = False
    return training


def _grpo(reading: Reading, program: Section, values: Mapping[str, Any]) -> Section:
    """A policy that generates, by itself or by vLLM (arguments/rlhf_args.py)."""
    program["tool"], args = GRPO, program["args"]
    prompt = program.pop("data", {}).get("seq_len")
    if prompt is None:
        prompt = USUAL_PROMPT
        reading.assumed.append(f"prompts of {prompt} tokens, because --max_length is not given")
    program["data"] = {"prompt": prompt}
    beta = values["beta"]
    args["beta"] = USUAL_BETA if beta is None else beta
    for name, theirs in GRPO_ARGS.items():
        if values[name] is not None:
            args[theirs] = values[name]
    args["top_k"] = max(0, values["top_k"] or 0)
    if values["use_vllm"]:
        args |= {"use_vllm": True, "vllm_mode": values["vllm_mode"] or "colocate"}
        args |= {one: values[name] for name, one in VLLM_ARGS.items() if values[name] is not None}
        args["vllm_enable_sleep_mode"] = bool(values["sleep_level"])
    reading.limits.append(Limit(key="rlhf_type=grpo", why=LOGITS, could="more"))
    training = _adapters(program, values)
    if (
        args.get("vllm_enable_sleep_mode") and args["vllm_mode"] == "colocate"
    ):  # TRL's own level is 2
        training["generation"] = {"sleep_level": values["sleep_level"]}
    return training


def _adapters(program: Section, values: Mapping[str, Any]) -> Section:
    """TRL would cast adapters of a quantized base to bf16, which ms-swift does not."""
    return {"lora": training_lora(values)} if "quantization" in program else {}
