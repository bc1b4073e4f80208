"""Scores the diagnosis on the runs that died: `python -m tests.advice.diagnosis.score`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.diagnosis import CERTAIN, Cause

HERE = Path(__file__).parent
# The words of the truth for ours; a step's number stands behind forward and backward.
TENSORS = {
    "logits": {"logits", "logits_gradient"},
    "logits in fp32": {"logits", "logits_gradient"},
    "indices of sorted logits": {"logits"},
    "weights": {"weights", "state_dict"},
    "gathered parameters": {"weights", "state_dict"},
    "state dict": {"state_dict"},
    "flat buffer of the parameters": {"broadcast_buffer", "weights"},
    "fp32 copies of the parameters": {"weights"},
    "optimizer states": {"optimizer_state"},
    "adamw states": {"optimizer_state"},
    "optimizer's temporaries": {"optimizer_temporary"},
    "attention": {"attention_scores", "activations"},
    "attention scores": {"attention_scores"},
    "attention's mask": {"attention_scores"},
    "MLP": {"activations", "activation_gradient"},
    "norm": {"activations", "activation_gradient"},
    "hidden states": {"activations", "activation_gradient"},
    "experts": {"activations"},
    "embedding": {"activations"},
    "LoRA's activations": {"activations", "activation_gradient"},
    "gradients": {"gradients"},
    "gradients' norm": {"gradients"},
}
PHASES = {
    "loading": "loading",
    "start-up": "start-up",
    "evaluation": "evaluation",
    "saving": "save",
}
STEP = "optimizer step"


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file beside this one."""
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]


def phase_word(cause: Cause) -> str:
    """Our phase in the words of the truth."""
    base, _, number = cause.phase.partition(", step ")
    step = int(number.replace(",", "") or 1)
    if base in PHASES:
        return PHASES[base]
    if base == STEP:
        created = "optimizer_state" in TENSORS.get(cause.tensor, set())
        return f"{STEP} (first: states being created)" if created else STEP
    if base not in ("forward", "backward"):
        return base
    return f"first {base}" if step == 1 else f"{'second' if step == 2 else 'later'} step ({base})"


def tensor_words(tensor: str) -> set[str]:
    """The truth's words that our name of a tensor can mean; the ledger's names say their parts."""
    name = tensor.split(":")[0].split(" in ")[0]
    parts = {word: TENSORS[word] for word in ("logits", "weights") if word in tensor}
    return TENSORS.get(name) or set().union(*parts.values()) or {name}


def score() -> dict[str, list[str]]:
    """By what was asked: the runs in which it is not said as the truth has it."""
    truth = {row["id"]: row for row in rows("died_truth")}
    wrong: dict[str, list[str]] = {"phase": [], "tensor": [], "certain and wrong": []}
    for row in rows("died"):
        want, cause = truth[row["id"]], diagnose(row["text"], row["config"]).cause
        found = (phase_word(cause), cause.tensor) if cause else ("", "")
        if found[0] != want["phase"]:
            wrong["phase"].append(f"{row['id']}: {found[0]}, and it is {want['phase']}")
        if want["tensor"] not in tensor_words(found[1]):
            wrong["tensor"].append(f"{row['id']}: {found[1]}, and it is {want['tensor']}")
            if cause is not None and cause.certainty == CERTAIN:
                wrong["certain and wrong"].append(f"{row['id']}: {cause.sentence}")
    return wrong


def main() -> int:
    """Print the score."""
    count = len(rows("died"))
    for what, wrong in score().items():
        print(f"{what}: {count - len(wrong)} of {count}" if "wrong" not in what else what)
        print(*(f"  {one}" for one in wrong), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
