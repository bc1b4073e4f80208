"""Programs as users start them: the real trainer of transformers, TRL or Lightning.

`train(job)` runs the program of a run file for the world's number of steps, in the environment that
a launcher gives each rank. The trainers are called as their documentation does, with rows of random
tokens, and a tokenizer where they need one.

The model of a program, loaded as users load it, with random weights.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...runfile.program import Program
from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables
from ...tools.translation.tools import start_problems
from . import deepspeed
from .job import NCCL, Job, start_group
from .model import NO_PROGRAM, auto_config, import_extra

BLOCK = 2**20  # random numbers, which every weight repeats
FOLDER = "gpu-mem-calc-models"  # in the system's folder for temporary files


def load_model(
    job: Job,
    program: Program,
    auto: str = "AutoModelForCausalLM",
    changes: Mapping[str, Any] | None = None,
    *,
    saved: bool = False,
) -> Any:
    """The model as from_pretrained gives it: on the host, or quantized on the GPU.

    auto: the class of transformers that makes it; changes: of its configuration; saved: there must
    be a checkpoint, because the program loads it again
    """
    torch, transformers = import_extra("torch", "torch"), import_extra("transformers", "torch")
    config = job.resolved.model.config
    if config is None:
        raise InputError(NO_PROGRAM)
    settings = auto_config({**config, **(changes or {})})
    load = dict(program.load)
    dtype = load.pop("dtype", None) or load.pop("torch_dtype", None) or settings.dtype
    dtype = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype or "bfloat16"))
    if load.get("attn_implementation"):
        settings._attn_implementation = load["attn_implementation"]
    make = getattr(transformers, auto)
    if not program.quantization and not saved:
        made = random_model if job.world.has_weights else model_without_values
        return made(make, settings, dtype)
    folder = _saved(job, settings, torch.bfloat16, make)
    if program.quantization:
        given = _with_dtypes(program.quantization, torch)
        load["quantization_config"] = transformers.BitsAndBytesConfig(**given)
        load.setdefault("device_map", {"": 0})
    return make.from_pretrained(folder, dtype=dtype, **load)


def random_model(make: Any, settings: Any, dtype: Any) -> Any:
    """A model on the host with random weights: one block of numbers, over and over, since drawing
    them all takes minutes.
    """
    torch, model = import_extra("torch", "torch"), model_without_values(make, settings, dtype)
    block = (torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            for part in parameter.data.view(-1).split(BLOCK):
                part.copy_(block[: part.numel()])
    return model


def model_without_values(make: Any, settings: Any, dtype: Any) -> Any:
    """A model on the host whose weights are not set."""
    with import_extra("transformers.initialization", "torch").no_init_weights():
        model = make.from_config(settings, dtype=dtype)
    model.tie_weights()
    return model


def _saved(job: Job, settings: Any, dtype: Any, make: Any) -> str:
    """The folder of a checkpoint with random weights; it is written once for each model."""
    if not job.world.has_weights:
        return _configured(settings, dtype, make)
    text = json.dumps([job.resolved.model.config, make.__name__], sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    parent = Path(tempfile.gettempdir()) / FOLDER
    parent.mkdir(exist_ok=True)
    with (parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = parent / name
        if not (folder / "config.json").exists():
            random_model(make, settings, dtype).save_pretrained(folder)
    return str(folder)


def _configured(settings: Any, dtype: Any, make: Any) -> str:
    """The folder of a checkpoint without weights, where tensors are fake."""
    settings.dtype = dtype
    settings.architectures = [make._model_mapping[type(settings)].__name__]
    folder = tempfile.mkdtemp(prefix="gpu-mem-calc-")
    settings.save_pretrained(folder)
    return folder


def _with_dtypes(quantization: dict[str, Any], torch: Any) -> dict[str, Any]:
    """BitsAndBytesConfig's arguments, with torch's dtypes for their names."""
    names = ("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    return {k: getattr(torch, v) if k in names and v else v for k, v in quantization.items()}


Rows = tuple[list[dict[str, Any]], dict[str, Any]]  # rows, and more arguments of the trainer
MODULE = ("batch_size", "gradient_checkpointing", "fused")  # of the module, not the trainer
ROWS = 64  # of a dataset: more than any program here reads
WORDS = 2000  # of the tokenizer
PROMPT = 128  # tokens of a prompt where the program names none
SPECIAL = {f"{kind}_token": f"<{kind}>" for kind in ("pad", "eos", "bos", "unk")}
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


def word_tokenizer(special: Mapping[str, str], count: int, template: str) -> Any:
    """A tokenizer of `count` words, each a token; `special`: the first ones, by their kinds."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*special.values(), *(f"w{number}" for number in range(len(special), count))]
    numbers = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(numbers, unk_token=special["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **special)


def train_trainer(job: Job, program: Program) -> None:
    """Run transformers.Trainer, with PEFT's preparation of a quantized or adapted model."""
    transformers = import_extra("transformers", "torch")
    arguments = transformers.TrainingArguments(**trainer_arguments(job, program))
    made = load_model(job, program)  # after the arguments, which turn on zero.Init
    length, vocab = int(job.resolved.run.seq), job.resolved.run.arch.vocab
    rows = [
        {"input_ids": ids, "labels": ids, "attention_mask": [1] * length}
        for ids in token_rows(vocab, length, rows_needed(job))
    ]
    evaluated = rows if arguments.eval_strategy != "no" else None
    trainer = transformers.Trainer(
        model=_prepared(program, made),
        args=arguments,
        train_dataset=rows,
        eval_dataset=evaluated,
        callbacks=[step_marks(job)],
    )
    trainer.train()


def trainer_arguments(job: Job, program: Program) -> dict[str, Any]:
    """The program's arguments, for a short run that writes nothing unless it is asked to."""
    short = {
        "output_dir": tempfile.mkdtemp(prefix="gpu-mem-calc-"),
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "max_steps": job.world.steps,
    }
    return {**short, **program.args}


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


def _prepared(program: Program, model: Any) -> Any:
    """The model with PEFT's adapters, as PEFT's guide for quantized models prepares it."""
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


def train_trl(job: Job, program: Program) -> None:
    """Run one of TRL's trainers on random rows."""
    kind = program.tool.partition(".")[2]
    module, make_rows = TRL[kind]
    trl = import_extra(module, "programs")
    if kind == "RewardTrainer":
        model = load_model(job, program, "AutoModelForSequenceClassification", {"num_labels": 1})
    else:
        model = load_model(job, program, saved=kind != "SFTTrainer")
    peft = program.peft and import_extra("peft", "torch").LoraConfig(**program.peft)
    config = getattr(trl, kind.replace("Trainer", "Config"))
    rows, more = make_rows(job, program.data)
    trainer = getattr(trl, kind)(
        model=model,
        args=config(**trainer_arguments(job, program)),
        train_dataset=import_extra("datasets", "programs").Dataset.from_list(rows),
        processing_class=word_tokenizer(SPECIAL, min(job.resolved.run.arch.vocab, WORDS), TEMPLATE),
        peft_config=peft,
        callbacks=[step_marks(job)],
        **more,
    )
    trainer.train()


def _sft(job: Job, data: Mapping[str, Any]) -> Rows:
    ids = token_rows(job.resolved.run.arch.vocab, data["seq_len"], rows_needed(job))
    return [{"input_ids": row} for row in ids], {}


def _pairs(job: Job, data: Mapping[str, Any]) -> Rows:
    """A prompt and two completions: `seq_len` tokens each, with the end that TRL adds."""
    prompt, count = data.get("prompt", PROMPT), rows_needed(job)
    completion = texts(data["seq_len"] - prompt - 1, 2 * count)
    rows = [
        {"prompt": one, "chosen": f" {good}", "rejected": f" {bad}"}
        for one, good, bad in zip(
            texts(prompt, count), completion[::2], completion[1::2], strict=True
        )
    ]
    return rows, {}


def _labelled(job: Job, data: Mapping[str, Any]) -> Rows:
    prompt, count = data.get("prompt", PROMPT), rows_needed(job)
    pairs = zip(texts(prompt, count), texts(data["seq_len"] - prompt - 1, count), strict=True)
    rows = [
        {"prompt": one, "completion": f" {two}", "label": number % 2 == 0}
        for number, (one, two) in enumerate(pairs)
    ]
    return rows, {}


def _prompts(job: Job, data: Mapping[str, Any]) -> Rows:
    rng = random.Random(0)

    def reward(completions: list[Any], **rest: Any) -> list[float]:
        return [rng.random() for _ in completions]

    rows = [{"prompt": one} for one in texts(data["prompt"], rows_needed(job))]
    return rows, {"reward_funcs": [reward]}


# TRL's trainer -> the module that has it, and what makes its rows.
TRL: Mapping[str, tuple[str, Callable[[Job, Mapping[str, Any]], Rows]]] = {
    "SFTTrainer": ("trl", _sft),
    "DPOTrainer": ("trl", _pairs),
    "RewardTrainer": ("trl", _pairs),
    "KTOTrainer": ("trl.experimental.kto", _labelled),
    "GRPOTrainer": ("trl", _prompts),
    "RLOOTrainer": ("trl", _prompts),
}


def train_lightning(job: Job, program: Program) -> None:
    """Run Lightning's Trainer for the world's number of optimizer steps."""
    lightning, torch = import_extra("lightning", "programs"), import_extra("torch", "torch")
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
    lightning.Trainer(**{**short, **args}).fit(_module(job, program, lightning, torch), loader)


def _module(job: Job, program: Program, lightning: Any, torch: Any) -> Any:
    model = load_model(job, program)
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
            fused = program.args.get("fused")
            return torch.optim.AdamW(self.parameters(), lr=1e-5, fused=fused)

    return Module()


def launch(job: Job) -> None:
    """Set what torchrun sets for this rank, and start the process group; nothing is downloaded."""
    os.environ.update(tables(__file__)["quiet"])
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
RUNNERS: dict[str, Callable[[Job, Program], None]] = {
    "transformers": train_trainer,
    "trl": train_trl,
    "lightning": train_lightning,
}


def train(job: Job) -> None:
    """Run a program to the end of its last step; marks the end of start-up and of every step."""
    program = job.file.program
    assert program is not None
    problems = list(start_problems(program.tool))
    if problems:
        raise InputError(problems)
    launch(job)
    RUNNERS[program.tool.partition(".")[0]](job, program)
