"""Checks that a trace covers a run."""

from __future__ import annotations

from collections.abc import Iterator

from ...pytorch.modelling.huggingface.flash import FLASH
from ...run.run import Run
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...training.engines.deepspeed.options import OPTIMIZERS as DEEPSPEED
from ...training.optimizers import OPTIMIZERS

ENGINES = ("pytorch_ddp", "fsdp", "deepspeed", "transformers")
UNKNOWN = "know no fake tensors"
ON_CPU = "a trace's tensors are all on the CPU, so it cannot tell host from GPU"
USE_SDPA = "'sdpa' takes torch's own flash kernel where a card does"
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


def not_traced(choice: str, why: str, instead: str = INSTEAD) -> str:
    """The sentence for a choice that a trace does not cover."""
    return f"{choice} is not traced: {why}; {instead}"


def _uncovered(resolved: ResolvedRun) -> Iterator[str]:
    run, engine, options = resolved.run, resolved.engine, resolved.run.options
    section = "training" if run.new_tokens is None else "inference"
    if engine.serve is not None:
        instead = "gpu-mem-calc infer estimates it, and 'transformers' is traced"
        yield f"inference.engine={engine.name!r} is not traced; {instead}"
    elif engine.name not in ENGINES:
        why = f"{engine.title} asks the GPU what to do as it runs"
        yield not_traced(f"engine.type={engine.name!r}", why)
    if engine.name == "deepspeed" and options.get("partition_activations"):
        fix = "leave it out, without tensor parallelism it saves nothing"
        why = "DeepSpeed reads sizes back from tensors"
        yield not_traced("engine.partition_activations=true", why, fix)
    if options.get("fsdp_version") == 2 and options["init_device"] == "cpu":
        choice = "engine.init_device='cpu' is not traced for FSDP version 2"
        yield f"{choice}: {ON_CPU}; {INSTEAD}"
    if options.get("sync_module_states"):
        why = "torch asks whether the weights are on a GPU, and a trace has none"
        fix = "leave it out, it adds no memory at the peak"
        yield not_traced("engine.sync_module_states=true", why, fix)
    if run.attention in FLASH:
        yield not_traced(
            f"{section}.attention={run.attention!r}", f"its kernels {UNKNOWN}", USE_SDPA
        )
    if run.rule.offload:
        yield not_traced("training.recompute.offload=true", ON_CPU)
    if run.quantization:
        why = f"bitsandbytes' kernels {UNKNOWN}"
        yield not_traced(f"{section}.quantization={run.quantization!r}", why)
    if engine.name == "deepspeed":
        yield from _deepspeed(run)
    elif OPTIMIZERS[run.optimizer].of_bitsandbytes:
        why = f"it is bitsandbytes', whose kernels {UNKNOWN}"
        yield not_traced(f"training.optimizer={run.optimizer!r}", why)


def _deepspeed(run: Run) -> Iterator[str]:
    for key in ("offload_optimizer", "offload_param"):
        if run.options.get(key) == "nvme":
            why = "DeepSpeed's asynchronous I/O writes real tensors"
            fix = "'cpu' is traced, and takes as much of the GPU"
            yield not_traced(f"engine.{key}='nvme'", why, fix)
    if run.optimizer not in DEEPSPEED:
        known = f"it runs {', '.join(DEEPSPEED)}"
        yield f"training.optimizer={run.optimizer!r} has no DeepSpeed optimizer; {known}"
