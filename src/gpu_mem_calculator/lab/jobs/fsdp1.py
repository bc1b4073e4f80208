"""FSDP version 1: `FullyShardedDataParallel` around every layer, then around the whole model."""

from __future__ import annotations

import warnings
from typing import Any

from ...training.engines.fsdp.options import HYBRID
from .fsdp import dtypes, fill_buffers, mesh, start
from .job import Job
from .model import Materializer, build, torch_dtype


def build_model(job: Job) -> Any:
    """The model where `init_device` says; from the CPU in a trace, which knows no host, from meta.

    On the CPU all weights are equal: they get random values after the model was sharded.
    """
    import torch

    where = init_device(job)
    if where == "cuda":
        return build(job, job.world.device)
    model = build(job, "meta")
    if where == "cpu":
        Materializer("cpu").all_of(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.01)
    return model


def init_device(job: Job) -> str:
    """Where the job's model is before it is sharded."""
    where: str = job.resolved.run.options["init_device"] or "cpu"
    return "meta" if job.world.device == "cpu" and where == "cpu" else where


def wrap(job: Job, model: Any, layers: list[Any]) -> Any:
    """The model in FullyShardedDataParallel, its shards filled with random weights."""
    from torch.distributed.fsdp import FullyShardedDataParallel as Wrapper
    from torch.distributed.fsdp.wrap import CustomPolicy

    start(job)
    if name := job.resolved.run.options["init_dtype"]:  # the weights' until they are sharded
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch_dtype(name))
    chosen = {id(layer) for layer in layers}
    policy = CustomPolicy(lambda module: id(module) in chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about strategies and frozen weights that the run chose
        wrapped = Wrapper(model, auto_wrap_policy=policy, **_arguments(job))
    _upcast(job, wrapped)
    if init_device(job) != "cuda":
        _fill_shards(wrapped)
        fill_buffers(wrapped)
    return wrapped


def _upcast(job: Job, wrapped: Any) -> None:
    """Upcast the shards to fp32, as Accelerate does (1.15.0 accelerator.py prepare_model)."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as Wrapper

    for unit in Wrapper.fsdp_modules(wrapped) if job.resolved.run.options["init_dtype"] else ():
        if unit._handle is not None:
            unit._flat_param.data = unit._flat_param.data.to(torch.float32)
            unit._handle._orig_param_dtype = torch.float32


def _arguments(job: Job) -> dict[str, Any]:
    """The arguments of FullyShardedDataParallel besides the model and its units."""
    import torch
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffload,
        MixedPrecision,
        ShardingStrategy,
    )

    options, device = job.resolved.run.options, job.world.device
    strategy: str = options["sharding_strategy"]
    name = "_HYBRID_SHARD_ZERO2" if strategy == "hybrid_shard_zero2" else strategy.upper()
    prefetch = options["backward_prefetch"]
    place = torch.device(device, torch.cuda.current_device() if device == "cuda" else None)
    mixed = dtypes(job.resolved.run)
    return {
        "device_mesh": mesh(job) if strategy in HYBRID else None,
        "sharding_strategy": ShardingStrategy[name],
        "cpu_offload": CPUOffload(offload_params=True) if options["cpu_offload"] else None,
        "backward_prefetch": None if prefetch == "none" else BackwardPrefetch[prefetch.upper()],
        "mixed_precision": MixedPrecision(**mixed) if any(mixed.values()) else None,
        "param_init_fn": Materializer(place).own_tensors,
        "device_id": place,
        "sync_module_states": options["sync_module_states"],
        "forward_prefetch": options["forward_prefetch"],
        "limit_all_gathers": options["limit_all_gathers"],
        "use_orig_params": options["use_orig_params"],
    }


def clip(model: Any) -> None:
    """Clip the norm of all ranks' gradients to 1 by FSDP's own method."""
    model.clip_grad_norm_(1.0)


def _fill_shards(wrapped: Any) -> None:
    """Fill every flat parameter's shard with random weights."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as Wrapper

    with torch.no_grad():
        for unit in Wrapper.fsdp_modules(wrapped):
            if unit._handle is not None:
                unit._handle.flat_param.normal_(0, 0.02)
