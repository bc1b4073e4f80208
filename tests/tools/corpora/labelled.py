"""Labels of public configurations: what each means for memory, set against what is read from it.

`labels.jsonl` has one line for each of 60 rows, which were drawn at random. Its labels were written
from the row and from the tool's own source, by someone who had not seen the reader of that tool:

- `labels`: keys of a run file and their values; a key that the source does not decide is left out
- `limited`: words of which each must be in a limit, a problem or a refusal, because a run file
  cannot say what the configuration says there
- `corrected`: what was wrong in the first label, as the tool's source shows
- `nth`: which one of the corpus' rows with this `source` it is, from 0

`python -m tests.tools.corpora.labelled` prints the agreement and every difference.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.program_section import with_program
from tests.tools.corpora.score import FOLDER, readings, rows

# Documented defaults of a run file (docs/run-file.md), for keys that a reading leaves out.
DEFAULTS: Mapping[str, Any] = {
    "training.batch_size": 1,
    "training.gradient_accumulation_steps": 1,
    "training.precision": "bf16_mixed",
    "training.optimizer": "adamw",
    "training.activation_checkpointing": "none",
    "training.checkpoint_reentrant": False,
    "training.attention": "sdpa",
    "training.quantization": "none",
    "training.double_quant": True,
    "training.loss": "full",
    "training.reference_model": False,
    "training.lora.dropout": 0.0,
    "training.generation.engine": "transformers",
    "training.evaluation.batch_size": 8,
    "parallelism.tensor_parallel_size": 1,
    "parallelism.pipeline_parallel_size": 1,
    "parallelism.context_parallel_size": 1,
    "parallelism.expert_parallel_size": 1,
    "parallelism.sequence_parallel": False,
    "engine.type": "pytorch_ddp",
    "engine.fsdp_version": 2,
    "engine.sharding_strategy": "full_shard",
    "engine.cpu_offload": False,
    "engine.offload_optimizer": "none",
    "engine.offload_param": "none",
    "engine.distributed_optimizer": False,
    "engine.gradient_accumulation_fusion": True,
    "engine.transformer_implementation": "transformer_engine",
    "engine.attention_backend": "auto",
    "engine.moe_token_dispatcher_type": "allgather",
    "model.dropout": 0.0,
    "inference.engine": "transformers",
    "inference.quantization": "none",
    "inference.tensor_parallel_size": 1,
    "inference.pipeline_parallel_size": 1,
    "inference.data_parallel_size": 1,
    "inference.expert_parallel_size": 1,
    "inference.gpu_memory_utilization": 0.92,  # vLLM's; the others' are written in their labels
    "inference.enforce_eager": False,
    "hardware.num_gpus": 1,
}


def labelled() -> list[dict[str, Any]]:
    """The labelled rows."""
    text = (FOLDER / "labels.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def row_of(label: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a corpus that a label is about."""
    same = [row for row in rows(label["corpus"]) if row["source"] == label["source"]]
    return same[label.get("nth", 0)]


def differences(label: Mapping[str, Any]) -> list[str]:
    """A sentence for each label that a reading disagrees with; none where all agree."""
    try:
        found = readings(row_of(label))
    except InputError as error:
        return _unnamed(label, [str(error)]) or _refused(label, str(error))
    [reading] = found
    named = [str(limit) for limit in reading.limits] + reading.problems
    try:
        run = with_program(reading.run, {})[0] if reading.run.get("program") else reading.run
    except InputError as error:
        return _unnamed(label, [*named, str(error)]) or _refused(label, str(error))
    wrong = [
        f"{key}: label {value!r}, reading {got!r}"
        for key, value in label["labels"].items()
        if not _same(value, got := value_in(run, key))
    ]
    return wrong + _unnamed(label, named)


def _refused(label: Mapping[str, Any], sentence: str) -> list[str]:
    """A refusal agrees where a label says that a run file cannot say all of it."""
    return [] if label.get("limited") else [f"refused: {sentence}"]


def _unnamed(label: Mapping[str, Any], sentences: list[str]) -> list[str]:
    text = " ".join(sentences).lower()
    return [
        f"limited: {word!r} is in no limit and no refusal"
        for word in label.get("limited", ())
        if word.lower() not in text
    ]


def value_in(run: Mapping[str, Any], key: str) -> Any:
    """The value of a key in a run file, its documented default where it has none."""
    training = run.get("training") or {}
    if key == "training.loss" and "loss" not in training and training.get("liger"):
        return _loss_of(training["liger"])
    if key == "training.activation_checkpointing" and "recompute" in training:
        return "full" if training["recompute"] == "full_offloaded" else training["recompute"]
    value: Any = run
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return DEFAULTS.get(key) if value is None else value


def _loss_of(liger: Any) -> str:
    """The loss that Liger's kernels bring."""
    if liger is True or "fused_linear_cross_entropy" in liger:
        return "liger_fused"
    return "liger" if "cross_entropy" in liger else "full"


def _same(label: Any, value: Any) -> bool:
    if isinstance(label, list) and isinstance(value, list):
        return sorted(label) == sorted(value)
    if isinstance(label, str) and isinstance(value, str):
        return label.lower() == value.lower()
    return bool(label == value)


def is_refused(label: Mapping[str, Any]) -> bool:
    """Whether a row ends in a sentence instead of keys."""
    try:
        for reading in readings(row_of(label)):
            with_program(reading.run, {})
    except InputError:
        return True
    return False


def main() -> None:
    """Print the agreement of each corpus, and every difference."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for label in labelled():
        wrong, count = differences(label), counts[label["corpus"]]
        count["files"] += 1
        count["agree"] += not wrong
        if is_refused(label):
            count["refused"] += 1
        else:
            count["keys"] += len(label["labels"]) + len(label.get("limited", ()))
            count["wrong keys"] += len(wrong)
        for line in wrong:
            print(f"{label['source'].partition(':')[2]}: {line}")
    for corpus, count in counts.items():
        print(corpus, dict(count))


if __name__ == "__main__":
    main()
