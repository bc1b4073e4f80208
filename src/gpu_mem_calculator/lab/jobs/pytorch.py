"""PyTorch's training loop: one GPU, DistributedDataParallel or FSDP; with PEFT for adapters."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from ...training.step.reference import PRECOMPUTED
from . import fsdp1, torchtitan
from .adapters import add_adapters
from .compiled import compile_model
from .ddp import wrap_ddp
from .evaluation import evaluate
from .fsdp import shard, sync_gradients
from .groups import start_group
from .job import Job
from .losses import refuse_with_function, refuse_without_transformers, step_loss, use_kernels
from .model import autocast_dtype, build, inputs, layers
from .optimizers import clip, optimizer
from .recompute import recompute, recompute_module
from .reference import Reference, precompute, reference


def train(job: Job) -> None:
    """Build, wrap, and run the world's number of steps; marks the end of every phase."""
    start_group(job)
    module, batch = _module(job)
    second = reference(job, module)
    if job.resolved.run.reference == PRECOMPUTED:
        precompute(job, module)
    runner = _wrap(job, module)
    owner = runner if _flattens(job) else module
    params = [p for p in owner.parameters() if p.requires_grad]
    job.world.mark("model")
    optim = optimizer(job, params, module)
    if job.world.watch is not None:
        job.world.watch(module, optim)
    for step in range(job.world.steps):
        _step(job, runner, optim, params, batch, f"s{step}", second)


def _module(job: Job) -> tuple[Any, Any]:
    """The model, and the batch of a user's function, else None."""
    refuse_with_function(job)
    refuse_without_transformers(job)
    sharded = job.resolved.engine.name == "fsdp"
    if job.build is not None:
        model, batch = job.build()
        recompute_module(job.resolved.run, layers(model))
        return model if sharded else model.to(job.world.device), batch
    if job.resolved.run.arch.implementation == torchtitan.NAME:
        model = torchtitan.build(job, "meta" if sharded else job.world.device)
        recompute_module(job.resolved.run, layers(model))
        return model, None
    model = _unsharded(job) if sharded else None
    if job.resolved.run.adapter is not None:
        return add_adapters(job, model), None
    model = model or build(job, job.world.device)
    use_kernels(job, model)
    recompute(job.resolved.run, model, layers(model))
    return model, None


def _unsharded(job: Job) -> Any:
    """The model as FSDP gets it; version 2 by default from the meta device."""
    given = job.resolved.run.options["init_device"] is not None
    return fsdp1.build_model(job) if given or _flattens(job) else build(job, "meta")


def _flattens(job: Job) -> bool:
    """Whether the job is FSDP version 1, which flattens parameters."""
    return job.resolved.run.options.get("fsdp_version") == 1


def _wrap(job: Job, model: Any) -> Any:
    if _flattens(job):
        return fsdp1.wrap(job, model, layers(model))
    own = job.resolved.run.arch.implementation == torchtitan.NAME
    if job.resolved.engine.name == "fsdp":
        shard(job, model, layers(model))
        if own:
            torchtitan.make_table(model, job.world.device)
    runner = model
    if job.resolved.engine.name != "fsdp" and job.resolved.run.mesh.dp > 1:
        runner = wrap_ddp(job, model)
    runner = compile_model(job, runner)
    return torchtitan.LossOf(runner) if own else runner


def _step(
    job: Job,
    runner: Any,
    optim: Any,
    params: list[Any],
    batch: Any,
    name: str,
    second: Reference | None = None,
) -> None:
    """One step: every micro-batch forward and backward, clipping, the optimizer."""
    import torch

    dtype, count = autocast_dtype(job), int(job.resolved.run.micro_batches)
    autocast = partial(torch.autocast, cache_enabled=job.resolved.run.autocast_cache)
    mark, zero_grad = job.world.mark, job.resolved.run.zero_grad
    for micro in range(count):
        sync_gradients(job, runner, last=micro == count - 1)
        arguments = inputs(job, batch)
        if zero_grad == "before_forward" and micro == 0:
            optim.zero_grad(set_to_none=True)
        cast = autocast(job.world.device, dtype=dtype) if dtype else nullcontext()
        loss = step_loss(job, runner, arguments, cast)
        if second is not None:
            second(arguments)
        mark(f"{name}.a{micro}.fwd")
        if zero_grad == "before_backward" and micro == 0:
            optim.zero_grad(set_to_none=True)
        (loss / count).backward()
        del loss
        mark(f"{name}.a{micro}.bwd")
    if _flattens(job) and job.resolved.run.clipping:
        fsdp1.clip(runner)
    else:
        clip(job, params)
    optim.step()
    mark(f"{name}.opt")
    if zero_grad == "after_step":
        optim.zero_grad(set_to_none=True)
    if job.resolved.run.evaluation is not None:
        evaluate(job, runner)
        mark(f"{name}.eval")
