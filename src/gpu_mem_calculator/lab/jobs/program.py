"""Programs as users start them: the real trainer of transformers, TRL or Lightning.

`train(job)` runs the program of a run file for the world's number of steps.

The environment that a launcher gives each rank.

Lightning's Trainer around a model of transformers, whose own loss is returned.

TRL's trainers as its documentation starts them.

transformers.Trainer as its documentation starts it.

Rows of random tokens, and a tokenizer, for programs that need them.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from ...runfile.text.errors import InputError
from ...tools.translation.tools import start_problems
from . import deepspeed
from .groups import start_group
from .job import NCCL, Job
from .model import import_extra
from .program_weights import load_model

ROWS = 64  # of a dataset: more than any program here reads
WORDS = 2000  # of the tokenizer
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def token_rows(vocab: int, length: int, count: int = ROWS) -> list[list[int]]:
    """Sequences of random token ids."""
    rng = random.Random(0)
    return [[rng.randrange(len(SPECIAL), vocab) for _ in range(length)] for _ in range(count)]


def texts(length: int, count: int = ROWS) -> list[str]:
    """Texts of `length` words; every word is one token."""
    rng = random.Random(1)
    low, high = len(SPECIAL), WORDS
    return [" ".join(f"w{rng.randrange(low, high)}" for _ in range(length)) for _ in range(count)]


def tokenizer(vocab: int) -> Any:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(len(SPECIAL), min(vocab, WORDS))}
    words |= {word: i for i, word in enumerate(SPECIAL)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {f"{word.strip('<>')}_token": word for word in SPECIAL}
    found = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    found.chat_template = TEMPLATE
    return found


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


# Arguments of the program that are the module's, not the trainer's.
MODULE = ("batch_size", "gradient_checkpointing", "fused")


def train_lightning(job: Job) -> None:
    """Run Lightning's Trainer for the world's number of optimizer steps."""
    lightning, torch = import_extra("lightning", "programs"), import_extra("torch", "torch")
    program = job.file.program
    assert program is not None
    args = {key: value for key, value in program.args.items() if key not in MODULE}
    rows = torch.tensor(
        token_rows(job.resolved.run.arch.vocab, int(job.resolved.run.seq), rows_needed(job))
    )
    loader = torch.utils.data.DataLoader(rows, batch_size=int(job.resolved.run.batch))
    short = {
        "accelerator": "gpu" if job.world.device == "cuda" else "cpu",
        "devices": 1,
        "max_steps": job.world.steps,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(**{**short, **args}).fit(_module(job, lightning, torch), loader)


def _module(job: Job, lightning: Any, torch: Any) -> Any:
    program, model = job.file.program, load_model(job)
    assert program is not None
    if program.args.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable()
    model.train()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.ended = model, 0

        def on_train_start(self) -> None:
            job.world.mark("model")

        def on_train_batch_end(self, *args: Any) -> None:
            if self.trainer.global_step > self.ended:
                job.world.mark(f"s{self.ended}.step")
                self.ended = self.trainer.global_step

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self) -> Any:
            assert program is not None
            fused = program.args.get("fused")
            return torch.optim.AdamW(self.parameters(), lr=1e-5, fused=fused)

    return Module()


QUIET = {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_OFFLINE": "1",
}


def launch(job: Job) -> None:
    """Set what torchrun sets for this rank, and start the process group; nothing is downloaded."""
    os.environ.update(QUIET)
    if job.resolved.engine.name == "deepspeed":
        deepspeed.start(job)
        return
    ranks = job.resolved.hardware.num_gpus
    if ranks == 1 or job.world.process_group == NCCL:
        start_group(job)
        return
    local = job.resolved.run.gpus_per_node
    os.environ.update(
        RANK=str(job.world.rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK="0",  # the only GPU of this machine
        LOCAL_WORLD_SIZE=str(min(local, ranks)),
        MASTER_ADDR="localhost",
        MASTER_PORT="29500",
    )
    start_group(job)


# The first part of a tool's name, and what runs it.
RUNNERS: dict[str, Callable[[Job], None]] = {
    "transformers": train_trainer,
    "trl": train_trl,
    "lightning": train_lightning,
}


def train(job: Job) -> None:
    """Run a program to the end of its last step; marks the end of start-up and of every step."""
    assert job.file.program is not None
    problems = list(start_problems(job.file.program.tool))
    if problems:
        raise InputError(problems)
    launch(job)
    RUNNERS[job.file.program.tool.partition(".")[0]](job)
