"""transformers.Trainer as its documentation starts it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from .job import Job
from .model import import_extra
from .program_batches import ROWS, token_rows
from .program_weights import load_model


def train_trainer(job: Job) -> None:
    """Run transformers.Trainer, with PEFT's preparation of a quantized or adapted model."""
    transformers = import_extra("transformers", "torch")
    program = job.file.program
    assert program is not None
    arguments = transformers.TrainingArguments(**trainer_arguments(job))
    model = _prepared(job, load_model(job))  # after the arguments, which turn on zero.Init
    length, vocab = int(job.resolved.run.seq), job.resolved.run.arch.vocab
    rows = [
        {"input_ids": ids, "labels": ids, "attention_mask": [1] * length}
        for ids in token_rows(vocab, length, rows_needed(job))
    ]
    evaluated = rows if arguments.eval_strategy != "no" else None
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=evaluated,
        callbacks=[step_marks(job)],
    )
    trainer.train()


def trainer_arguments(job: Job) -> dict[str, Any]:
    """The program's arguments, for a short run that writes nothing unless it is asked to."""
    assert job.file.program is not None
    short = {
        "output_dir": tempfile.mkdtemp(prefix="gpu-mem-calc-"),
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "max_steps": job.world.steps,
    }
    return {**short, **job.file.program.args}


def rows_needed(job: Job) -> int:
    """Rows that all ranks together read in the job's steps."""
    run = job.resolved.run
    step = int(run.batch) * int(run.micro_batches) * job.resolved.hardware.num_gpus
    return max(ROWS, step * (job.world.steps + 1))


def step_marks(job: Job) -> Any:
    """A callback that marks the end of start-up and of each step."""
    transformers = import_extra("transformers", "torch")

    class StepMarks(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            job.world.mark("model")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            job.world.mark(f"s{state.global_step - 1}.step")

    return StepMarks()


def _prepared(job: Job, model: Any) -> Any:
    """The model with PEFT's adapters, as PEFT's guide for quantized models prepares it."""
    program = job.file.program
    assert program is not None
    if program.peft is None:
        return model
    peft = import_extra("peft", "torch")
    checkpointing = bool(program.args.get("gradient_checkpointing"))
    if program.quantization:
        prepare: Callable[..., Any] = peft.prepare_model_for_kbit_training
        model = prepare(model, use_gradient_checkpointing=checkpointing)
    if checkpointing:
        model.enable_input_require_grads()
    return peft.get_peft_model(model, peft.LoraConfig(**program.peft))
