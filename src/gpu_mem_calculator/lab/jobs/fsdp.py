"""FSDP2: `fully_shard` on every layer, then on the whole model."""

from __future__ import annotations

from typing import Any

from ...run.run import Run
from ...runfile.text.errors import InputError
from ...training.engines.fsdp.options import (
    HYBRID,
    KEEP_GATHERED,
    shard_ranks,
    wraps_ends,
    wraps_tied_ends,
)
from .job import Job, fake_group, mesh_of
from .model import mixed_dtype, torch_dtype


def start(job: Job) -> None:
    """Refuse what a trace cannot tell, and let a single GPU have the group that its mesh needs."""
    import torch.distributed as dist

    if job.resolved.run.options["cpu_offload"] and job.world.device == "cpu":
        why = "a trace's tensors are all on the CPU, so it cannot tell host from GPU"
        raise InputError(f"engine.cpu_offload=true: {why}; use calculate or measure")
    if not dist.is_initialized():
        fake_group(0, 1)


def shard(job: Job, model: Any, layers: list[Any]) -> None:
    """Shard a model on the meta device, and give the shards memory and values."""
    options, device = job.resolved.run.options, job.world.device
    start(job)
    if options["sharding_strategy"] == "no_shard":
        _replicate(job, model, layers)
    else:
        _fully_shard(job, model, layers)
    if any(p.device.type == "meta" for p in model.parameters()):
        model.to_empty(device="cpu" if options["cpu_offload"] else device)
        _fill(model)
        for module in model.modules():  # with offload FSDP leaves them and the shards on the host
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device)


def sync_gradients(job: Job, runner: Any, *, last: bool) -> None:
    """Let only the last micro-batch of a step reduce gradients, where the run says so.

    Version 2 has a method for it. Version 1's no_sync() sets the same flag of each unit
    (torch 2.13 distributed/fsdp/fully_sharded_data_parallel.py).
    """
    options = job.resolved.run.options
    if job.resolved.engine.name != "fsdp" or options["sync_each_batch"]:
        return
    if options["fsdp_version"] == 2:
        runner.set_requires_gradient_sync(last)
        return
    for unit in type(runner).fsdp_modules(runner):
        unit._sync_gradients = last


def mesh(job: Job) -> Any:
    """All ranks on one axis; for hybrid_shard two axes, also with one replica."""
    ranks, shards = int(job.resolved.run.mesh.dp), int(shard_ranks(job.resolved.run))
    if job.resolved.run.options["sharding_strategy"] not in HYBRID:
        return mesh_of(job, (ranks,), ("shard",))
    return mesh_of(job, (ranks // shards, shards), ("replicate", "shard"))


def dtypes(run: Run) -> dict[str, Any]:
    """The dtypes of FSDP's mixed precision; None where it keeps those of the weights."""
    reduce = run.options["reduce_dtype"]
    return {
        "param_dtype": mixed_dtype(run),
        "reduce_dtype": torch_dtype(reduce) if reduce else None,
    }


def _policies(job: Job) -> dict[str, Any]:
    """The arguments of `fully_shard` and `replicate` besides the mesh."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    policies: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(**dtypes(job.resolved.run))}
    if job.resolved.run.options["cpu_offload"]:
        policies["offload_policy"] = CPUOffloadPolicy(pin_memory=True)
    return policies


def _fully_shard(job: Job, model: Any, layers: list[Any]) -> None:
    from torch.distributed.fsdp import fully_shard

    options = job.resolved.run.options
    reshard = options["sharding_strategy"] not in KEEP_GATHERED
    root = options["reshard_root_after_forward"]
    rest = {"mesh": mesh(job), **_policies(job)}
    for layer in layers:
        fully_shard(layer, reshard_after_forward=reshard, **rest)
    if wraps_tied_ends(job.resolved.run):
        embedding, head = _ends(model)
        fully_shard([*head[:-1], embedding, head[-1]], reshard_after_forward=False, **rest)
        root = False
    elif wraps_ends(job.resolved.run):
        embedding, head = _ends(model)
        weight = embedding.weight  # alive until all is sharded, as in Accelerate 1.15
        fully_shard(embedding, reshard_after_forward=reshard, **rest)
        fully_shard(head, reshard_after_forward=False, **rest)
        del weight
    fully_shard(model, reshard_after_forward=reshard if root is None else root, **rest)


def _ends(model: Any) -> tuple[Any, list[Any]]:
    """The embedding, and final norm and head: of torchtitan's model, or of a transformers one."""
    if hasattr(model, "tok_embeddings"):
        return model.tok_embeddings, [model.norm, model.output]
    norm = next((m for n, m in model.get_decoder().named_children() if "norm" in n), None)
    head = [model.get_output_embeddings()]
    return model.get_input_embeddings(), head if norm is None else [norm, *head]


def _replicate(job: Job, model: Any, layers: list[Any]) -> None:
    from torch.distributed._composable.replicate_with_fsdp import replicate

    ranks = mesh_of(job, (int(job.resolved.run.mesh.dp),), ("replicate",))
    for module in (*layers, model):
        replicate(module, mesh=ranks, **_policies(job))


def _fill(model: Any) -> None:
    """Fill every shard with random weights, and rotary frequencies with finite values."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.normal_(0, 0.02)
    fill_buffers(model)


def fill_buffers(model: Any) -> None:
    """Fill rotary frequencies with finite values."""
    import torch

    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "inv_freq" in name:
                half = torch.arange(0, buffer.numel(), dtype=torch.float32, device=buffer.device)
                buffer.copy_(1.0 / (10000 ** (half / buffer.numel())))
