"""PyTorch's training loop: one GPU, DistributedDataParallel or FSDP; with PEFT for adapters.

A model is compiled as transformers.Trainer and accelerate do it. A frozen reference model runs
forward before each backward, and an evaluation follows a step as in Trainer (trainer.py
evaluation_loop), where the run has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from ...run.run import BASE, COPY, PRECOMPUTED
from ...training.optimizers import FOREACH, FORLOOP, FUSED, OPTIMIZERS
from . import fsdp1, torchtitan
from .adapters import add_adapters
from .ddp import wrap_ddp
from .fsdp import shard, sync_gradients
from .job import Job, start_group
from .losses import refuse_with_function, refuse_without_transformers, step_loss, use_kernels
from .model import autocast, autocast_dtype, build, import_extra, inputs, layers
from .recompute import recompute, recompute_module

LEARNING_RATE = 1e-5
Reference = Callable[[Any], None]


def compile_model(job: Job, model: Any) -> Any:
    """The model under torch.compile in the run's mode; the model itself where there is none.

    Under autocast the graph returns fp32 logits (accelerate 1.15.0 utils/operations.py
    convert_outputs_to_fp32).
    """
    import torch

    mode = job.resolved.run.compile
    if not mode:
        return model
    if autocast_dtype(job):
        inner = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            outputs = inner(*args, **kwargs)
            outputs.logits = outputs.logits.float()
            return outputs

        model.forward = forward
    return torch.compile(model, mode=mode)


def optimizer(job: Job, params: Sequence[Any], model: Any) -> Any:
    """The run's optimizer over the parameters of the model that train.

    torch's implementation is always passed: by default torch chooses by the device, and a trace
    runs on the CPU.
    """
    import torch

    run = job.resolved.run
    row = OPTIMIZERS[run.optimizer]
    module, _, name = row.make.partition(":")
    choice: dict[str, Any] = {}
    if FOREACH in row.implementations:  # on the host torch chooses the loop
        default = FORLOOP if run.options.get("cpu_offload") else row.default
        implementation = run.implementation or default
        fused = implementation == FUSED
        choice = {"fused": True} if fused else {"foreach": implementation == FOREACH}
    if row.decayed_first:
        params = sorted(params, key=lambda p: p.ndim < 2)
    if row.matrices:  # torch's Muon takes matrices only
        params = [p for p in params if p.ndim == 2]
    library = import_extra(module, "measure")
    made = getattr(library, name)(params, lr=LEARNING_RATE, **row.arguments, **choice)
    if run.embedding_states_32bit:
        manager = library.GlobalOptimManager.get_instance()
        for table in model.modules():
            if isinstance(table, torch.nn.Embedding):
                manager.register_module_override(table, "weight", {"optim_bits": 32})
    return made


def clip(job: Job, params: Sequence[Any]) -> None:
    """Clip the norm of the gradients to 1, where the run clips."""
    import torch

    if job.resolved.run.clipping:
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)


def evaluate(job: Job, runner: Any) -> None:
    """Run batches forward without gradients; logits that are kept are gathered and concatenated."""
    import torch

    evaluation = job.resolved.run.evaluation
    assert evaluation is not None
    kept = logits = None
    runner.eval()
    for _ in range(max(evaluation.kept, 1)):
        logits = _logits(job, runner)
        if not evaluation.kept:
            logits = None
        elif kept is None:
            kept = logits
        else:
            kept = torch.cat((kept, logits), dim=0)
    del kept, logits
    runner.train()


def _logits(job: Job, runner: Any) -> Any:
    """The logits of one batch, of all ranks, in fp32 where accelerate autocasts."""
    import torch

    run, dtype = job.resolved.run, autocast_dtype(job)
    assert run.evaluation is not None
    shape = (int(run.evaluation.batch), int(run.evaluation.seq))
    ids = torch.randint(0, run.arch.vocab, shape, device=job.world.device)
    with torch.no_grad(), autocast(job):
        logits = runner(input_ids=ids, labels=ids)["logits"]
    if dtype:
        logits = logits.float()
    ranks = int(run.mesh.dp)
    return torch.cat([logits] * ranks) if ranks > 1 else logits


def reference(job: Job, model: Any) -> Reference | None:
    """What runs the reference on a model's arguments: a copy, or the model without its adapters."""
    kind = job.resolved.run.reference
    if kind not in (COPY, BASE):
        return None
    frozen = model
    if kind == COPY:
        frozen = build(job, job.world.device).eval()
        use_kernels(job, frozen)

    def run(arguments: Any) -> None:
        with model.disable_adapter() if kind == BASE else nullcontext():
            forward(job, frozen, arguments)

    return run


def forward(job: Job, model: Any, arguments: Any) -> None:
    """Run a model forward without autograd."""
    import torch

    with torch.no_grad(), autocast(job):
        model(**arguments)


def train(job: Job) -> None:
    """Build, wrap, and run the world's number of steps; marks the end of every phase."""
    start_group(job)
    module, batch = _module(job)
    second = reference(job, module)
    if job.resolved.run.reference == PRECOMPUTED:
        forward(job, module, inputs(job, None))
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
    count, zero_grad = int(job.resolved.run.micro_batches), job.resolved.run.zero_grad
    mark = job.world.mark
    for micro in range(count):
        sync_gradients(job, runner, last=micro == count - 1)
        arguments = inputs(job, batch)
        if zero_grad == "before_forward" and micro == 0:
            optim.zero_grad(set_to_none=True)
        cast = autocast(job, cache_enabled=job.resolved.run.autocast_cache)
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
