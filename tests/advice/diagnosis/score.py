"""Scores the diagnosis on runs that died and on public cases.

python -m tests.advice.diagnosis.score [died] [died_2] [public_cases] [public_cases_2] ...
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.diagnosis import CERTAIN, Cause
from gpu_mem_calculator.tools.logs.figure import Figure
from gpu_mem_calculator.tools.logs.read import LogLine

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
    "activations": {"activations"},
    "gradients of activations": {"activation_gradient"},
    "experts": {"activations"},
    "embedding": {"activations"},
    "LoRA's activations": {"activations", "activation_gradient"},
    "gradients": {"gradients"},
    "gradients' norm": {"gradients"},
    "gradient buckets": {"gradient_bucket"},
    "KV cache": {"kv_cache"},
}
PHASES = {
    "loading": "loading",
    "start-up": "start-up",
    "evaluation": "evaluation",
    "saving": "save",
    "generation": "generation",
}
SHARE = {"share_too_high", "server_share"}
HOST = {
    "host_ram",
    "host_ram_maybe",
    "host_cache",
    "host_cache_refused",
    "host_not_pinned",
    "host_grows",
    "prompt_cache",
}
# By the labels' words for a cause: our causes that mean the same.
CAUSES = {
    "whole_model_per_rank": {"weights", "start_up", "whole_on_each", "gathered_to_generate"},
    "kv_too_long": {"cache_below_one_sequence", "no_room_for_cache", "cache_buffer", "cpu_layers"},
    "logits": {"logits"},
    "does_not_fit": {"weights", "card_full", "start_up", "optimizer_start", "one_process"},
    "utilization_too_high": {*SHARE, "graphs", "trial_run"},
    **dict.fromkeys(("whole_model_per_rank_host", "host_leak", "cgroup_limit"), HOST),
    **dict.fromkeys(("host_copies_per_numa_node", "host_optimizer_offload"), HOST),
    "checkpoint_kept_on_gpu": {"resume"},
    "state_dict_gathered_on_gpu": {"saving"},
    "merge_on_gpu": {"saving", "merging"},
    "optimizer_foreach_temporary": {"optimizer_temporaries"},
    "optimizer_state": {"optimizer_states", "optimizer_start"},
    "activations_long_batch": {"longer_batch", "activations"},
    "activations_no_checkpointing": {"activations", "backward"},
    "eval_outputs_accumulate": {"evaluation", "predictions"},
    "eval_batch_default": {"evaluation"},
    "kv_negative": {"no_room_for_cache"},
    "multimodal_profiling": {"images_in_trial_run", "trial_run"},
    "graph_capture": {"graphs"},
    "draft_model_not_counted": {"draft_model", "weights", "trial_run", "start_up"},
    "pipeline_copies": {"pipeline_copies", "compute_buffer", "cache_buffer"},
    "attention_scores_buffer": {"compute_buffer"},
    "prefill_too_large": {"trial_run", "cache_full", "activations"},
    "engine_batch_too_large": {"compute_buffer", "start_up", "weights"},
    "other_process": {"card_taken"},
    "other_ranks_on_card": {"card_taken", "ranks_on_card"},
    "driver_refused_with_free_memory": {"driver_refused"},
    "unified_memory_gtt": {"unified_memory"},
    "fragmentation": {"fragmented"},
    "nccl_card_full": {"nccl"},
    "shm_too_small": {"shared_memory"},
    "parallel_slots_multiply_kv": {"cache_buffer", "compute_buffer"},
    "image_too_large": {"images_in_trial_run", "compute_buffer"},
    "vision_encoder_not_counted": {"compute_buffer"},
    **dict.fromkeys(("host_prompt_cache", "does_not_fit_host"), HOST),
    "estimate_too_low": {"weights", "cache_buffer", "compute_buffer"},
    "split_ignores_card_size": {"weights", "cache_buffer", "compute_buffer"},
    "saving_8bit_copy": {"saving"},
    "copy_for_save": {"saving"},
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


def score(cases: list[dict[str, Any]], name: str) -> dict[str, list[str]]:
    """By what was asked: the runs of a file in which it is not said as the truth has it."""
    truth = {row["id"]: row for row in rows(f"{name}_truth")}
    wrong: dict[str, list[str]] = {"phase": [], "tensor": [], "certain and wrong": []}
    for row in cases:
        want, cause = truth[row["id"]], diagnose(row["text"], row["config"]).cause
        found = (phase_word(cause), cause.tensor) if cause else ("", "")
        if found[0] != want["phase"]:
            wrong["phase"].append(f"{row['id']}: {found[0]}, and it is {want['phase']}")
        if want["tensor"] not in tensor_words(found[1]):
            wrong["tensor"].append(f"{row['id']}: {found[1]}, and it is {want['tensor']}")
            if cause is not None and cause.certainty == CERTAIN:
                wrong["certain and wrong"].append(f"{row['id']}: {cause.sentence}")
    return wrong


def public(cases: list[dict[str, Any]], name: str) -> dict[str, list[str]]:
    """The same of public cases: the cause, and the figures that were not read."""
    wrong: dict[str, list[str]] = {"cause": [], "figures": [], "certain and wrong": []}
    for row in cases:
        found = diagnose(row["text"], row["command"] or None)
        cause, want = found.cause, CAUSES.get(row["cause_word"], set())
        if "(host" in row["phase"]:  # it was the host's memory that ended
            want = want | HOST
        if cause is None or cause.id not in want:
            said = "nothing" if cause is None else f"{cause.certainty} {cause.id}"
            wrong["cause"].append(f"{row['id']}: {said}, and it is {row['cause_word']}")
            if cause is not None and cause.certainty == CERTAIN:
                wrong["certain and wrong"].append(f"{row['id']}: {cause.sentence}")
        read = {value for line in found.read for value in _values(line)}
        read |= set(_numbers(found.run or {}))
        for figure in row["figures"]:
            if not _is_read(figure, read):
                wrong["figures"].append(f"{row['id']}: {' '.join(map(str, figure.values()))}")
    return wrong


def _values(line: LogLine) -> list[float]:
    return [float(one.value) for one in line.figures.values() if isinstance(one, Figure)]


def _numbers(of: Any) -> list[float]:
    """The numbers of a run's file."""
    if isinstance(of, Mapping | list):
        return [
            each
            for one in (of.values() if isinstance(of, Mapping) else of)
            for each in _numbers(one)
        ]
    return [float(of)] if isinstance(of, int | float) and not isinstance(of, bool) else []


def _is_read(figure: dict[str, Any], read: set[float]) -> bool:
    """Whether a labelled figure, or each number of a range or a product, is among those read."""
    text, unit = str(figure["value"]), str(figure["unit"])
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    parts = re.findall(r"(?<![\d.])-?\d[\d.]*[kK]?|(?<=[~*x-])\d[\d.]*[kK]?", text)
    return bool(parts) and all(_is_number_read(one, unit.lower(), read) for one in parts)


def _is_number_read(text: str, unit: str, read: set[float]) -> bool:
    thousands = text[-1] in "kK" or unit.startswith("k ")  # of tokens
    plain = float(text.rstrip("kK")) * (1000 if thousands else 1)
    sizes = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    sized = unit[:1] in sizes and (unit[1:2] in ("b", "i", "") or unit.startswith("byte"))
    binary = plain * sizes[unit[0]] if sized else plain
    decimal = plain * 1000 ** "bkmgt".index(unit[0]) if sized else plain
    billions = plain * 10**9 if unit == "b" else plain  # of parameters
    wanted = (plain, binary, decimal, billions)
    return any(abs(one - want) <= 1 for one in read for want in wanted)


PUBLIC = ("public_cases", "public_cases_2", "public_cases_3")
SETS = {"died": score, "died_2": score, **dict.fromkeys(PUBLIC, public)}
HALVES = {"seen": 0, "unseen": 1}  # of the later sets: every second row may be read


def main(names: Sequence[str]) -> int:
    """Print the score of some files, or of all; of the later sets the misses of the seen half."""
    for name in names or SETS:
        halves = HALVES if name[-2:] in ("_2", "_3") else {"": None}
        for half, first in halves.items():
            cases = rows(name)[first::2] if half else rows(name)
            for what, wrong in SETS[name](cases, name).items():
                figures = what == "figures"
                count = sum(len(row["figures"]) for row in cases) if figures else len(cases)
                print(f"{name} {half}".strip() + f", {what}: {count - len(wrong)} right of {count}")
                if half != "unseen":
                    print(*(f"  {one}" for one in wrong), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
