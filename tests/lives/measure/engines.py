"""Lives of a rank of FSDP and DeepSpeed in a job of many; the process group is torch's fake one."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.lives.models import Row

from .host import Phases
from .inputs import device, load

STEPS = 2
LEARNING_RATE = 1e-5


def start_group(ranks: int) -> None:
    """Rank 0 of a job; collectives return at once and move nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)


def start(phases: Phases, packages: list[str]) -> None:
    """Import, start CUDA and the group."""
    import torch

    phases.note("before_imports")
    for name in packages:
        import_module(name)
    phases.note("start")
    if phases.real:
        torch.cuda.init()
        torch.cuda.set_device(0)
        torch.cuda.synchronize()
    phases.note("cuda")


def load_model(row: Row, path: Path, phases: Phases) -> Any:
    """The model on the host, as every rank loads it."""
    model = load(path, row["life"]["load"], None)
    model.train()
    model.config.use_cache = False
    if row["config"]["training"]["activation_checkpointing"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    phases.end("loaded")
    return model


def batch(row: Row, vocabulary: int) -> Any:
    """Random tokens of a step."""
    import torch

    training = row["config"]["training"]
    size = (training["batch_size"], training["seq_len"])
    return torch.randint(0, vocabulary, size, device=device())


def blocks(model: Any) -> Any:
    """The model's layers, whatever the family calls them."""
    inner = getattr(model, "model", None) or model.transformer
    inner = getattr(inner, "decoder", inner)
    return inner.layers if hasattr(inner, "layers") else inner.h


def fsdp(row: Row, path: Path, folder: Path, phases: Phases) -> None:
    """Load, shard, train, gather the whole state dict, save it; the same with the optimizer's."""
    import torch

    config = row["config"]
    start(phases, ["torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict"])
    start_group(config["hardware"]["num_gpus"])
    model = load_model(row, path, phases)
    vocabulary = model.config.vocab_size
    first = config["engine"]["fsdp_version"] == 1
    wrapped = _first_version(model, config["engine"]) if first else _second_version(model, config)
    parameters = list(wrapped.parameters())
    way = {config["training"]["optimizer_implementation"]: True}
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, **way)
    phases.end("startup")
    for _ in range(STEPS):
        ids = batch(row, vocabulary)
        loss = wrapped(input_ids=ids, labels=ids).loss
        loss.backward()
        del loss
        if first:
            wrapped.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    phases.end("trained")
    gather = _gather_first if first else _gather_second
    folder.mkdir(parents=True, exist_ok=True)
    # FSDP 1 sends the optimizer's names as objects, which a fake group does not bring back
    for name in ("model",) if first else ("model", "optimizer"):
        states = gather(name, wrapped, optimizer, config["engine"])
        phases.end(f"gathered_{name}")
        torch.save(states, folder / f"{name}.pt")
        del states
        phases.end(f"saved_{name}")


def _first_version(model: Any, engine: Row) -> Any:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import CustomPolicy

    chosen = {id(layer) for layer in blocks(model)}
    reduce = torch.float32 if engine["reduce_dtype"] == "fp32" else torch.bfloat16
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=CustomPolicy(lambda module: id(module) in chosen),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduce),
        use_orig_params=True,
        device_id=torch.device(device(), 0) if device() == "cuda" else None,
    )


def _second_version(model: Any, config: Row) -> Any:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    more = {
        "mesh": init_device_mesh(device(), (config["hardware"]["num_gpus"],)),
        "mp_policy": policy,
        "reshard_after_forward": config["engine"]["reshard_after_forward"],
    }
    for layer in blocks(model):
        fully_shard(layer, **more)
    fully_shard(model, **more)
    for module in model.modules():  # buffers, too, where FSDP left them
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device())
    return model


def _gather_first(name: str, wrapped: Any, optimizer: Any, engine: Row) -> Any:
    from torch.distributed.fsdp import (
        FullOptimStateDictConfig,
        FullStateDictConfig,
        FullyShardedDataParallel,
        StateDictType,
    )

    given = engine["state_dict_config"]
    kinds = (FullStateDictConfig(**given), FullOptimStateDictConfig(**given))
    full = StateDictType.FULL_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(wrapped, full, *kinds):
        if name == "model":
            return wrapped.state_dict()
        return FullyShardedDataParallel.optim_state_dict(wrapped, optimizer)


def _gather_second(name: str, wrapped: Any, optimizer: Any, engine: Row) -> Any:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    options = StateDictOptions(**engine["state_dict_options"])
    if name == "model":
        return get_model_state_dict(wrapped, options=options)
    return get_optimizer_state_dict(wrapped, optimizer, options=options)


def environment(ranks: int) -> None:
    """What a launcher says, and how DeepSpeed's optimizers are compiled."""
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(ranks),
        LOCAL_SIZE=str(ranks),
        CROSS_RANK="0",
        CROSS_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29511",
        TORCH_CUDA_ARCH_LIST="9.0",
        DS_SKIP_CUDA_CHECK="1",
    )


def compile_adam() -> None:
    """Compile DeepSpeed's Adam of the host, which it else does at first use."""
    environment(1)
    from deepspeed.ops.op_builder import CPUAdamBuilder

    CPUAdamBuilder().load(verbose=False)


def deepspeed(row: Row, path: Path, folder: Path, phases: Phases) -> None:
    """Load, initialize, train, save 16-bit weights, save this rank's checkpoint."""
    config = row["config"]
    ranks = config["hardware"]["num_gpus"]
    environment(ranks)
    start(phases, ["deepspeed", "deepspeed.runtime.zero.utils"])
    start_group(ranks)
    import deepspeed as package
    import deepspeed.runtime.zero.utils as lists

    package.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
    # ZeRO-3 compares lists with those of rank 0, which a fake group does not send
    lists.get_lst_from_rank0, lists.assert_lst_len_same_as_other_ranks = list, len
    model = load_model(row, path, phases)
    vocabulary = model.config.vocab_size
    runner, *_ = package.initialize(
        model=model, model_parameters=list(model.parameters()), config=_json(config)
    )
    del model
    phases.end("startup")
    for _ in range(STEPS):
        ids = batch(row, vocabulary)
        loss = runner(input_ids=ids, labels=ids).loss
        runner.backward(loss)
        del loss
        runner.step()
    phases.end("trained")
    runner.save_16bit_model(str(folder))
    phases.end("saved_model")
    runner.save_checkpoint(str(folder))
    phases.end("saved_optimizer")


def _json(config: Row) -> Row:
    engine, training = config["engine"], config["training"]
    pinned = engine["pin_memory"]
    zero: Row = {"stage": engine["zero_stage"]}
    zero["offload_optimizer"] = {"device": "cpu", "pin_memory": pinned}
    if engine.get("offload_param", "none") != "none":
        zero["offload_param"] = {"device": engine["offload_param"], "pin_memory": pinned}
    if engine["zero_stage"] == 3:
        gather = "stage3_gather_16bit_weights_on_model_save"
        zero[gather] = engine[gather]
    return {
        "train_micro_batch_size_per_gpu": training["batch_size"],
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE}},
    }
