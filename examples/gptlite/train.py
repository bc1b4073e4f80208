"""Train GPT-lite with DeepSpeed: on one process or many, one node or several.

    deepspeed --num_gpus 8 train.py --deepspeed_config configs/zero3_bf16.json
    torchrun --nproc-per-node 8 train.py --deepspeed_config configs/zero3_bf16.json
    python train.py --deepspeed_config configs/ddp_fp32.json

Another model and data set: a module with `get_model_and_dataset(options)`, given as `--task`.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import checkpoints
import deepspeed
import memory
import options as command
import pipeline
import progress
import torch
from batches import batches
from deepspeed.accelerator import get_accelerator
from torch import Tensor, distributed, nn

warnings.filterwarnings(  # torch renames what DeepSpeed 0.19.8 calls
    "ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning
)
WAIT = 10  # seconds that other ranks leave the first one to say what is wrong
VALIDATED = 8  # steps' worth of data that the validation loss is of


def main() -> int:
    """Everything, or one sentence and exit status 2."""
    try:
        options = command.parse()
        if options.run_memory_estimation_only:
            command.refuse_flags(options)
            if options.rank == 0:
                print(memory.estimate(options))
            return 0
        command.check(options)
        first = checkpoints.saved_steps(options)
        task = load_task(options)
        device = start(options)
        model, dataset = build(options, task, device)
        module = prepared(model, options)
    except ValueError as error:
        return refuse(str(error))
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=[p for p in module.parameters() if p.requires_grad],
        config=options.config,
    )
    checkpoints.load(engine, options, first)
    done = train(engine, dataset, options, first)
    finish(done, engine, task, dataset, options, device, parameters)
    distributed.destroy_process_group()
    return 0


def refuse(sentence: str) -> int:
    """Say it once. A launcher ends all ranks as soon as one does: the first one speaks first."""
    command.tell(sentence)
    if os.environ.get("RANK", "0") != "0":
        time.sleep(WAIT)
    return 2


def load_task(options: Namespace) -> ModuleType:
    """The module of `--task`; options that mean nothing to it are refused."""
    try:
        task = importlib.import_module(options.task)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--task {options.task}: no module {error.name!r} is found; give the name "
            "of a file beside train.py, without .py"
        ) from None
    if not hasattr(task, "get_model_and_dataset"):
        raise ValueError(f"--task {options.task} has no get_model_and_dataset(options): write it")
    for name in getattr(task, "UNUSED", ()):
        given = getattr(options, name)
        if given is not None and given is not False:
            raise ValueError(f"--{name} means nothing to --task {options.task}: leave it out")
    return task


def start(options: Namespace) -> torch.device:
    """Join the other processes; the device is this one's."""
    if "WORLD_SIZE" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
    os.environ.setdefault("LOCAL_RANK", str(options.local_rank))
    if get_accelerator().device_name() == "cpu":
        # gloo does without: DeepSpeed would compile an all-reduce of its own for minutes
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    get_accelerator().set_device(options.local_rank)
    deepspeed.init_distributed(
        dist_backend=get_accelerator().communication_backend_name(),
        auto_mpi_discovery=False,
        verbose=False,
    )
    return torch.device(get_accelerator().device_name(options.local_rank))


def build(options: Namespace, task: ModuleType, device: torch.device) -> tuple[nn.Module, Any]:
    """The model where it belongs, and the data set.

    In stage 3 no rank ever holds the whole model: zero.Init cuts each layer as it is made. A
    pipeline moves one stage to the device. Everything else is made on the device.
    """
    torch.manual_seed(options.seed)
    place: AbstractContextManager[Any] = device
    if options.zero_stage == 3:
        place = deepspeed.zero.Init(config_dict_or_path=options.config)
    elif options.pipeline:
        place = torch.device("meta" if options.pipeline_spec_layers else "cpu")
    with place:
        return task.get_model_and_dataset(options)


def prepared(model: nn.Module, options: Namespace) -> nn.Module:
    """The model with its checkpoints set up, cut into stages where it is a pipeline.

    One checkpoint per block, whatever number the file has: the model knows better.
    """
    for wanted, name in ((options.checkpointing, "checkpoint"), (options.pipeline, "to_layers")):
        if wanted and not hasattr(model, name):
            raise ValueError(
                f"--task {options.task}: {type(model).__name__} has no `{name}`, which"
                " activation checkpointing or a pipeline needs"
            )
    module = pipeline.staged(model, options) if options.pipeline else model
    if options.checkpointing:
        count = pipeline.checkpoints_kept(module) if options.pipeline else len(model.blocks)
        written = options.config.get("activation_checkpointing", {}).get("number_checkpoints")
        if written not in (None, count) and not options.pipeline:
            command.tell(
                f"number_checkpoints={written} in {options.deepspeed_config} is "
                f"{count} in this run, one per block"
            )
        deepspeed.checkpointing.configure(None, num_checkpoints=count, **options.checkpointing)
        if not options.pipeline:
            model.checkpoint = deepspeed.checkpointing.checkpoint
    return module


def step_of(engine: Any) -> Callable[[Iterator[Any]], Tensor]:
    """What trains one step: a function of the batches that returns the loss."""
    if hasattr(engine, "train_batch"):
        return engine.train_batch  # a pipeline's own schedule

    def step(data: Iterator[Any]) -> Tensor:
        total = torch.zeros((), device=engine.device)
        for _ in range(engine.gradient_accumulation_steps()):
            loss = engine(*on_device(next(data), engine))
            engine.backward(loss)
            engine.step()  # counts the micro-batches itself
            total += loss.detach()
        return total / engine.gradient_accumulation_steps()

    return step


def on_device(batch: list[Tensor], engine: Any) -> list[Tensor]:
    """A batch where the model is, and what has a fraction in the model's dtype."""
    dtype = next(engine.module.parameters()).dtype
    return [one.to(engine.device, dtype if one.is_floating_point() else None) for one in batch]


def train(engine: Any, dataset: Any, options: Namespace, first: int) -> progress.Progress:
    """All steps. What is random in one follows from its number: a resumed run repeats it."""
    engine.train()
    step, data = step_of(engine), batches(dataset, engine, options.seed, first)
    done = progress.Progress(options, first, engine.train_batch_size())
    for number in range(first, options.steps):
        torch.manual_seed((options.seed << 32) + number * options.ranks + options.rank)
        done.step(number, step(data))
        last = number + 1 == options.steps
        if options.save and (last or (number + 1) % (options.save_every or options.steps) == 0):
            checkpoints.save(engine, options, number + 1)
    return done


def validation_loss(engine: Any, dataset: Any, options: Namespace) -> float:
    """The mean loss over some of what was held out."""
    data, total = batches(dataset, engine, options.seed), 0.0
    micro_batches = VALIDATED * engine.gradient_accumulation_steps()
    for _ in range(VALIDATED if options.pipeline else micro_batches):
        if options.pipeline:
            loss = engine.eval_batch(data)
        else:
            with torch.no_grad():
                loss = engine(*on_device(next(data), engine))
        total += progress.mean(loss)
    return total / (VALIDATED if options.pipeline else micro_batches)


def finish(
    done: progress.Progress,
    engine: Any,
    task: ModuleType,
    dataset: Any,
    options: Namespace,
    device: torch.device,
    parameters: int,
) -> None:
    """The report, and a sample of what was learnt."""
    report = done.report(parameters)
    engine.eval()
    if hasattr(engine.module, "checkpoint"):
        engine.module.checkpoint = None  # nothing is kept where nothing goes back
    if options.validation:
        report["validation_loss"] = validation_loss(engine, dataset.validation, options)
    if not options.no_sample and hasattr(task, "show_sample"):
        report["sample"] = sample(engine, task, dataset, options, device)
    if options.rank == 0:
        print(progress.show(report))
        if report.get("sample"):
            print(f"\n{report['sample']}")
        if options.report:
            progress.write(report, options.report)


def sample(
    engine: Any, task: ModuleType, dataset: Any, options: Namespace, device: torch.device
) -> str:
    """What the model makes of what it learnt.

    In stage 3 every rank takes part, since each layer is gathered for its turn. A pipeline's
    stages are put together on the host of rank 0.
    """
    model = engine.module
    if options.pipeline:
        model, device = pipeline.gathered(engine, task, options), torch.device("cpu")
    torch.manual_seed(options.seed)
    return "" if model is None else task.show_sample(model, dataset, device)


if __name__ == "__main__":
    sys.exit(main())
