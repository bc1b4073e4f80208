"""TRL's trainers as its documentation starts them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from .job import Job
from .model import import_extra
from .program_batches import texts, token_rows, tokenizer
from .program_trainer import rows_needed, step_marks, trainer_arguments
from .program_weights import load_model

EXPERIMENTAL = {"KTOTrainer": "trl.experimental.kto"}


def train_trl(job: Job) -> None:
    """Run one of TRL's trainers on random rows."""
    program = job.file.program
    assert program is not None
    kind = program.tool.partition(".")[2]
    trl = import_extra(EXPERIMENTAL.get(kind, "trl"), "programs")
    if kind == "RewardTrainer":
        model = load_model(job, "AutoModelForSequenceClassification", {"num_labels": 1})
    else:
        model = load_model(job, saved=kind != "SFTTrainer")
    peft = program.peft and import_extra("peft", "torch").LoraConfig(**program.peft)
    config = getattr(trl, kind.replace("Trainer", "Config"))
    rows, more = ROWS_OF[kind](job)
    trainer = getattr(trl, kind)(
        model=model,
        args=config(**trainer_arguments(job)),
        train_dataset=import_extra("datasets", "programs").Dataset.from_list(rows),
        processing_class=tokenizer(job.resolved.run.arch.vocab),
        peft_config=peft,
        callbacks=[step_marks(job)],
        **more,
    )
    trainer.train()


Rows = tuple[list[dict[str, Any]], dict[str, Any]]  # rows, and more arguments of the trainer


def _sft(job: Job) -> Rows:
    ids = token_rows(job.resolved.run.arch.vocab, _data(job)["seq_len"], rows_needed(job))
    return [{"input_ids": row} for row in ids], {}


def _pairs(job: Job) -> Rows:
    """A prompt and two completions: `seq_len` tokens each, with the end that TRL adds."""
    data, count = _data(job), rows_needed(job)
    prompt = data.get("prompt", 128)
    completion = texts(data["seq_len"] - prompt - 1, 2 * count)
    rows = [
        {"prompt": one, "chosen": f" {good}", "rejected": f" {bad}"}
        for one, good, bad in zip(
            texts(prompt, count), completion[::2], completion[1::2], strict=True
        )
    ]
    return rows, {}


def _labelled(job: Job) -> Rows:
    data, count = _data(job), rows_needed(job)
    prompt = data.get("prompt", 128)
    pairs = zip(texts(prompt, count), texts(data["seq_len"] - prompt - 1, count), strict=True)
    rows = [
        {"prompt": one, "completion": f" {two}", "label": number % 2 == 0}
        for number, (one, two) in enumerate(pairs)
    ]
    return rows, {}


def _prompts(job: Job) -> Rows:
    rng = random.Random(0)

    def reward(completions: list[Any], **rest: Any) -> list[float]:
        return [rng.random() for _ in completions]

    rows = [{"prompt": one} for one in texts(_data(job)["prompt"], rows_needed(job))]
    return rows, {"reward_funcs": [reward]}


def _data(job: Job) -> Mapping[str, Any]:
    assert job.file.program is not None
    return job.file.program.data


ROWS_OF: Mapping[str, Callable[[Job], Rows]] = {
    "SFTTrainer": _sft,
    "DPOTrainer": _pairs,
    "RewardTrainer": _pairs,
    "KTOTrainer": _labelled,
    "GRPOTrainer": _prompts,
    "RLOOTrainer": _prompts,
}
