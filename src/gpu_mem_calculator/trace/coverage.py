"""Checks that a trace covers a run."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.errors import InputError
from ..core.resolved_run import ResolvedRun
from ..jobs.deepspeed import OPTIMIZERS as DEEPSPEED
from ..jobs.optimizers import TORCH
from ..run.run import Run

ENGINES = ("pytorch_ddp", "fsdp", "deepspeed", "transformers")
INSTEAD = "gpu-mem-calc calculate estimates it, and measure runs it on a GPU"


def check_covered(resolved: ResolvedRun, rank: int) -> None:
    """Raise a sentence for each choice of the run that a trace does not cover."""
    problems = [*_uncovered(resolved)]
    ranks = resolved.hardware.num_gpus
    if rank >= ranks:
        few = "one rank, 0" if ranks == 1 else f"the ranks 0 to {ranks - 1}"
        problems.append(f"rank {rank} is not in the run, which has {few}")
    if problems:
        raise InputError(problems)


def _uncovered(resolved: ResolvedRun) -> Iterator[str]:
    run, engine = resolved.run, resolved.engine
    section = "training" if run.new_tokens is None else "inference"
    if engine.serve is not None:
        yield (
            f"inference.engine={engine.name!r} is not traced; gpu-mem-calc infer estimates it, "
            "and 'transformers' is traced"
        )
    elif engine.name not in ENGINES:
        yield (
            f"engine.type={engine.name!r} is not traced: {engine.title} asks the GPU what to "
            f"do as it runs; {INSTEAD}"
        )
    if engine.name == "deepspeed" and run.options.get("partition_activations"):
        yield (
            "engine.partition_activations=true is not traced: DeepSpeed reads sizes back from "
            "tensors; leave it out, without tensor parallelism it saves nothing"
        )
    if run.attention == "flash_attention_2":
        yield (
            f"{section}.attention='flash_attention_2' is not traced: its kernels know no fake "
            "tensors; 'sdpa' takes torch's own flash kernel where a card does"
        )
    if run.quantization:
        yield (
            f"{section}.quantization={run.quantization!r} is not traced: bitsandbytes' kernels "
            f"know no fake tensors; {INSTEAD}"
        )
    if engine.name == "deepspeed":
        yield from _deepspeed(run)
    elif run.optimizer not in TORCH:
        yield (
            f"training.optimizer={run.optimizer!r} is not traced: it is bitsandbytes', whose "
            f"kernels know no fake tensors; {INSTEAD}"
        )


def _deepspeed(run: Run) -> Iterator[str]:
    for key in ("offload_optimizer", "offload_param"):
        if run.options.get(key) == "nvme":
            yield (
                f"engine.{key}='nvme' is not traced: DeepSpeed's asynchronous I/O writes real "
                "tensors; 'cpu' is traced, and takes as much of the GPU"
            )
    if run.optimizer not in DEEPSPEED:
        yield (
            f"training.optimizer={run.optimizer!r} has no DeepSpeed optimizer; "
            f"it runs {', '.join(DEEPSPEED)}"
        )
