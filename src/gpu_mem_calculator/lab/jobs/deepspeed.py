"""DeepSpeed's engine: ZeRO-0 to ZeRO-3 with offload, set up by `deepspeed.initialize`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from tempfile import TemporaryDirectory
from typing import Any

from ...run.run import Run
from ...runfile.text.errors import InputError
from ...tools.deepspeed.names import CHECKPOINT_KEYS, SWAP_ELEMENTS, ZERO_KEYS, optimizer_section
from ...training.engines.deepspeed.options import option
from .job import NCCL, Job, fake_group, launched
from .losses import refuse_with_function, step_loss, use_kernels
from .model import hf_config, import_extra, inputs, layers, torch_dtype
from .recompute import recompute, recompute_module

LEARNING_RATE = 1e-5


def config_json(job: Job, nvme_path: str = "") -> dict[str, Any]:
    """DeepSpeed's JSON: every option of the run file under DeepSpeed's name."""
    run = job.resolved.run
    batch, steps = int(run.batch), int(run.micro_batches)
    clipping = job.file.training.gradient_clipping
    data: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": steps,
        "train_batch_size": batch * steps * int(run.mesh.dp),
        "zero_optimization": _zero(run, nvme_path),
        "gradient_clipping": 1.0 if clipping is None else clipping,
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
        "zero_allow_untested_optimizer": True,
        "optimizer": optimizer_section(run, lr=LEARNING_RATE),
    }
    if run.precision != "fp32":
        data[run.precision.partition("_")[0]] = {"enabled": True}
    chosen = {key: True for key in CHECKPOINT_KEYS if option(run, key)}
    if chosen:
        data["activation_checkpointing"] = chosen
    return data


def _zero(run: Run, nvme_path: str) -> dict[str, Any]:
    section: dict[str, Any] = {"stage": int(option(run, "zero_stage"))}
    section |= {key: value for key in ZERO_KEYS if (value := option(run, key)) is not None}
    for key in ("offload_optimizer", "offload_param"):
        place = option(run, key)
        if place != "none":
            section[key] = {"device": place, "pin_memory": bool(option(run, "pin_memory"))}
            if place == "nvme":
                section[key]["nvme_path"] = nvme_path
    return section


def refusals(job: Job) -> list[str]:
    """A sentence for each choice that is estimated but cannot be run."""
    run = job.resolved.run
    problems = []
    if run.mesh.pp > 1:
        why = "DeepSpeed's pipeline is estimated but not run here; set it to 1"
        problems.append(f"parallelism.pipeline_parallel_size={run.mesh.pp}: {why}")
    shard = -(-run.arch.largest_weight // int(run.mesh.dp))
    if option(run, "offload_param") == "nvme" and shard > SWAP_ELEMENTS:
        larger = f"larger than the swap buffers of {SWAP_ELEMENTS}; use more ranks or 'cpu'"
        problems.append(f"engine.offload_param='nvme': a shard of {shard} elements is {larger}")
    if run.reentrant and any(option(run, key) for key in CHECKPOINT_KEYS):
        why = "deepspeed.checkpointing is reentrant by itself; leave it out"
        problems.append(f"training.checkpoint_reentrant=true: {why}")
    if run.loss == "chunked" and option(run, "zero_stage") == 3:
        why = "its weight is gathered under Trainer alone; use loss 'full', or engine.zero_stage 2"
        problems.append(f"training.loss='chunked' with ZeRO-3 cannot be run here: {why}")
    return problems


def train(job: Job) -> None:
    """Build, initialize, and run the world's number of steps; marks the end of every phase."""
    problems = refusals(job)
    if problems:
        raise InputError(problems)
    refuse_with_function(job)
    start(job)
    deepspeed = import_extra("deepspeed", "measure")
    with _nvme_folder(job) as folder:
        data = config_json(job, folder)
        model, batch = _model(job, data)
        job.world.mark("model")
        trained = [p for p in model.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=data)
        if job.world.watch is not None:
            job.world.watch(engine.module, engine.optimizer)
        job.world.mark("init")
        for step in range(job.world.steps):
            _step(job, engine, batch, f"s{step}")


def _step(job: Job, engine: Any, batch: Any, name: str) -> None:
    """Every micro-batch: forward, backward, and DeepSpeed's step, which counts micro-batches."""
    for micro in range(int(job.resolved.run.micro_batches)):
        arguments = inputs(job, batch)
        loss = step_loss(job, engine, arguments, nullcontext())
        job.world.mark(f"{name}.a{micro}.fwd")
        engine.backward(loss)
        del loss
        job.world.mark(f"{name}.a{micro}.bwd")
        engine.step()
        job.world.mark(f"{name}.a{micro}.opt")


def start(job: Job) -> None:
    """Start torch's process group and DeepSpeed's view of it.

    Under a launcher the group is real. Otherwise a fake group plays one rank of a job of the whole
    size, and DeepSpeed uses it.
    """
    deepspeed = import_extra("deepspeed", "measure")
    if job.world.process_group == NCCL and launched():
        deepspeed.init_distributed(dist_backend="nccl", auto_mpi_discovery=False, verbose=False)
        return
    ranks, rank = int(job.resolved.hardware.num_gpus), job.world.rank
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK="0",
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29511",
        CROSS_RANK="0",
        CROSS_SIZE="1",
        LOCAL_SIZE=str(min(ranks, 8)),
    )
    if job.world.device == "cuda":
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", job.resolved.run.compute_capability)
        os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    fake_group(rank, ranks)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
    # ZeRO-3 compares lists with those of rank 0, which a fake group does not send.
    lists: Any = import_extra("deepspeed.runtime.zero.utils", "measure")
    lists.get_lst_from_rank0, lists.assert_lst_len_same_as_other_ranks = list, len


@contextmanager
def _nvme_folder(job: Job) -> Iterator[str]:
    """A temporary folder for offload to NVMe, "" without it; needs DeepSpeed's asynchronous I/O."""
    run = job.resolved.run
    if "nvme" not in (option(run, "offload_optimizer"), option(run, "offload_param")):
        yield ""
        return
    builders = import_extra("deepspeed.ops.op_builder", "measure")
    if not builders.AsyncIOBuilder().is_compatible(verbose=False):
        needs = "needs libaio's headers to build DeepSpeed's asynchronous I/O"
        raise InputError(f"engine.offload_*='nvme' {needs}; install libaio-dev or use 'cpu'")
    with TemporaryDirectory(prefix="gpu-mem-calc-") as folder:
        yield folder


def _model(job: Job, data: dict[str, Any]) -> tuple[Any, Any]:
    """The model, and the batch of a user's function, else None.

    The model is made under zero.Init for ZeRO-3, else whole on the device. The engine casts a
    user's model; transformers' is made in the training dtype.
    """
    torch, deepspeed = import_extra("torch", "measure"), import_extra("deepspeed", "measure")
    sharded = data["zero_optimization"]["stage"] == 3 and option(job.resolved.run, "zero_init")
    place = torch.device(job.world.device)
    with deepspeed.zero.Init(config_dict_or_path=data) if sharded else place:
        model, batch = job.build() if job.build is not None else (_from_config(job), None)
    checkpoint = _checkpoint(data)
    if job.build is None:
        return _prepare(job, model, checkpoint), None
    recompute_module(job.resolved.run, layers(model), checkpoint)
    return model, batch


def _from_config(job: Job) -> Any:
    transformers = import_extra("transformers", "measure")
    dtype = torch_dtype(job.resolved.run.precision)
    return transformers.AutoModelForCausalLM.from_config(hf_config(job), dtype=dtype)


def _prepare(job: Job, model: Any, checkpoint: Callable[..., Any] | None) -> Any:
    """A model of transformers with its adapters and its recomputation.

    `checkpoint` is DeepSpeed's checkpoint function, which each layer then calls. It is reentrant:
    without an input that requires a gradient, autograd would record nothing.
    """
    run = job.resolved.run
    model.train()
    model.config.use_cache = False
    if run.adapter is not None:
        from .adapters import add_adapters

        model = add_adapters(job, model)
    else:
        use_kernels(job, model)
        recompute(run, model, layers(model))
    if checkpoint is not None:
        model.enable_input_require_grads()
        for layer in layers(model):
            layer._gradient_checkpointing_func = checkpoint
    return model


def _checkpoint(data: dict[str, Any]) -> Callable[..., Any] | None:
    """DeepSpeed's checkpoint function, where the JSON configures it; None for torch's."""
    chosen = data.get("activation_checkpointing")
    if chosen is None:
        return None
    checkpointing = import_extra("deepspeed", "measure").checkpointing
    checkpointing.configure(
        None,
        partition_activations=chosen.get("partition_activations", False),
        checkpoint_in_cpu=chosen.get("cpu_checkpointing", False),
    )
    function: Callable[..., Any] = checkpointing.checkpoint
    return function
