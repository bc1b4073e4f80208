"""Megatron-Core's GPTModel with the local spec: one rank of a job with TP, SP, PP and EP."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ...run.run import Run
from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables
from ...training.engines.megatron_lm.options import (
    ENGINE,
    OPTIMIZERS,
    expert_tp,
    gradient_bits,
    option,
)
from .job import NCCL, Job, fake_group, launched
from .megatron_config import model_arguments, refusals, transformer_arguments
from .model import import_extra

LEARNING_RATE = 1e-5
CORE = "megatron.core"
EXTENSIONS: dict[str, str] = tables(__file__)["extensions"]
# CheckpointWithoutOutput, which recomputes norms, reads Transformer Engine's FP8 state even
# without FP8 (megatron-core 0.19.2 tensor_parallel/random.py:693, 740).
NORMS = "layernorm"


def train(job: Job) -> None:
    """Build this rank's stage and run the world's number of steps; marks the end of every phase."""
    run = job.resolved.run
    problems = [*refusals(run), *_missing_extensions(run)]
    if problems:
        raise InputError(problems)
    torch = import_extra("torch", "measure")
    import_extra(CORE, "measure")
    start(job)
    config = _config(run)
    chunks = [_chunk(job, config, index) for index in range(int(run.virtual_stages))]
    job.world.mark("model")
    models = _wrap(run, config, chunks)
    job.world.mark("ddp")
    optimizer = _optimizer(job, models)
    job.world.mark("optimizer")
    batch: dict[str, Any] = {}
    for step in range(job.world.steps):
        for model in models:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        _forward_backward(job, models, batch, f"s{step}")
        for model in models:
            model.finish_grad_sync()
        job.world.mark(f"s{step}.sync")
        optimizer.step()
        job.world.mark(f"s{step}.opt")
    torch.cuda.synchronize()


def _missing_extensions(run: Run) -> list[str]:
    sentences = [
        f"engine.{name}=true needs {module}, which is not installed; set engine.{name}=false"
        for name, module in EXTENSIONS.items()
        if option(run, name) and find_spec(module) is None
    ]
    if NORMS in run.rule.modules and find_spec(ENGINE) is None:
        key = f"training.recompute.recompute_modules={list(run.rule.modules)}"
        needs = f"{NORMS!r} needs {ENGINE} in Megatron-Core, which is not installed"
        sentences.append(f"{key}: {needs}; leave it out")
    if run.optimizer == "lion" and find_spec("emerging_optimizers") is None:
        needs = "needs emerging_optimizers in Megatron-Core; install it or use 'adamw'"
        sentences.append(f"training.optimizer='lion' {needs}")
    return sentences


def start(job: Job) -> None:
    """Start the process groups of every axis.

    Without a launcher every group is torch's fake one. Tensors from other stages are then filled
    with small random numbers, so that uninitialized memory does not affect a step.
    """
    import torch.distributed as dist

    run, mesh = job.resolved.run, job.resolved.run.mesh
    state = import_extra(f"{CORE}.parallel_state", "measure")
    if job.world.process_group == NCCL and launched():
        dist.init_process_group("nccl")
    else:
        fake_group(job.world.rank, int(job.resolved.hardware.num_gpus))
        _fake_new_groups()
    chunks = int(run.virtual_stages)
    state.initialize_model_parallel(
        tensor_model_parallel_size=int(mesh.tp),
        pipeline_model_parallel_size=int(mesh.pp),
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        context_parallel_size=int(mesh.cp),
        expert_model_parallel_size=int(mesh.ep),
        expert_tensor_parallel_size=int(expert_tp(run)),
        num_distributed_optimizer_instances=option(run, "num_distributed_optimizer_instances"),
    )
    import_extra(f"{CORE}.tensor_parallel.random", "measure").model_parallel_cuda_manual_seed(0)


def _fake_new_groups() -> None:
    """Make every new group use the fake backend, and fill the tensors that are received.

    For the rest of this process, which runs one job and ends.
    """
    dist: Any = import_extra("torch.distributed", "measure")
    new_group, exchange = dist.new_group, dist.batch_isend_irecv

    def fake_new_group(*args: Any, **named: Any) -> Any:
        return new_group(*args, **{**named, "backend": None})

    def exchange_filled(operations: list[Any]) -> Any:
        for operation in operations:
            if operation.op is dist.irecv and operation.tensor.is_floating_point():
                operation.tensor.detach().normal_(0, 0.02)
        return exchange(operations)

    dist.new_group, dist.batch_isend_irecv = fake_new_group, exchange_filled


def _config(run: Run) -> Any:
    """Megatron-Core's TransformerConfig of a run."""
    torch = import_extra("torch", "measure")
    kinds = import_extra(f"{CORE}.transformer.transformer_config", "measure")
    values = transformer_arguments(run)
    for key in ("params_dtype", "pipeline_dtype"):
        values[key] = getattr(torch, values[key])
    values["activation_func"] = getattr(torch.nn.functional, values["activation_func"])
    return kinds.TransformerConfig(**values)


def _chunk(job: Job, config: Any, index: int) -> Any:
    """The model of this rank's stage, or of one of its chunks where stages interleave."""
    run = job.resolved.run
    state = import_extra(f"{CORE}.parallel_state", "measure")
    gpt = import_extra(f"{CORE}.models.gpt.gpt_model", "measure")
    _plain_norms()
    chunk = index if run.virtual_stages > 1 else None
    model = gpt.GPTModel(
        config=config,
        transformer_layer_spec=_layers(config, chunk),
        pre_process=state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
        post_process=state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
        vp_stage=chunk,
        **model_arguments(run),
    ).cuda()
    cast: dict[str, Callable[[], Any]] = {"bf16": model.bfloat16, "fp16": model.half}
    return cast.get(run.precision.partition("_")[0], lambda: model)()


def _layers(config: Any, chunk: int | None) -> Any:
    """The local layer spec; with experts, one for each layer."""
    specs = import_extra(f"{CORE}.models.gpt.gpt_layer_specs", "measure")
    if config.num_moe_experts is not None:
        return specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=config.normalization, vp_stage=chunk
        )
    return specs.get_gpt_layer_local_spec(
        qk_layernorm=config.qk_layernorm, normalization=config.normalization
    )


def _plain_norms() -> None:
    """Use torch's norms under sequence parallelism, too; they need only a rank's own tokens.

    Megatron-Core requires Apex there, whose norms take the same memory.
    """
    torch = import_extra("torch", "measure")
    norms = import_extra(f"{CORE}.transformer.torch_norm", "measure")

    def make(cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        kind = torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm
        return kind(hidden_size, eps=eps)

    norms.WrappedTorchNorm.__new__ = make


def _wrap(run: Run, config: Any, chunks: list[Any]) -> list[Any]:
    """Each chunk in Megatron's DistributedDataParallel: one gradient buffer, reduced at the end."""
    distributed = import_extra(f"{CORE}.distributed", "measure")
    settings = distributed.DistributedDataParallelConfig(
        grad_reduce_in_fp32=gradient_bits(run) == 32,
        overlap_grad_reduce=False,
        use_distributed_optimizer=bool(option(run, "distributed_optimizer")),
        num_distributed_optimizer_instances=option(run, "num_distributed_optimizer_instances"),
    )
    return [
        distributed.DistributedDataParallel(config, settings, chunk, disable_bucketing=index > 0)
        for index, chunk in enumerate(chunks)
    ]


def optimizer_arguments(job: Job) -> dict[str, Any]:
    """Arguments of OptimizerConfig; dtypes are torch's names.

    The loss scale of fp16 is constant: a dynamic one starts so high that the first steps are
    skipped.
    """
    run, clipping = job.resolved.run, job.file.training.gradient_clipping
    values = transformer_arguments(run)
    arguments: dict[str, Any] = {
        "lr": LEARNING_RATE,
        "bf16": values["bf16"],
        "fp16": values["fp16"],
        "params_dtype": values["params_dtype"],
        "use_distributed_optimizer": bool(option(run, "distributed_optimizer")),
        "clip_grad": 1.0 if clipping is None else clipping,
        "decoupled_weight_decay": True,
        **OPTIMIZERS[run.optimizer],
    }
    if values["fp16"]:
        arguments["loss_scale"] = 1.0
    return arguments


def _optimizer(job: Job, models: list[Any]) -> Any:
    torch, kinds = import_extra("torch", "measure"), import_extra(f"{CORE}.optimizer", "measure")
    values = optimizer_arguments(job)
    values["params_dtype"] = getattr(torch, values["params_dtype"])
    return kinds.get_megatron_optimizer(kinds.OptimizerConfig(**values), models)


def _fill_batch(job: Job, batch: dict[str, Any]) -> dict[str, Any]:
    """Replace the token ids, positions and causal mask of `batch` with those of a micro-batch."""
    torch = import_extra("torch", "measure")
    run = job.resolved.run
    sequences, length = int(run.batch), int(run.seq) // int(run.mesh.cp)
    batch["input_ids"] = torch.randint(0, run.arch.vocab, (sequences, length), device="cuda")
    batch["position_ids"] = torch.arange(length, device="cuda").unsqueeze(0).expand(sequences, -1)
    square = (1, 1, length, length)
    batch["attention_mask"] = torch.ones(square, dtype=torch.bool, device="cuda").triu(1)
    return batch


def _forward_backward(job: Job, models: list[Any], batch: dict[str, Any], name: str) -> None:
    """Every micro-batch forward and backward: one by one, or by the pipeline's schedule."""
    run = job.resolved.run
    if run.mesh.pp == 1:
        for micro in range(int(run.micro_batches)):
            arguments = _fill_batch(job, batch)
            loss = models[0](**arguments, labels=arguments["input_ids"]).float().mean()
            job.world.mark(f"{name}.m{micro}.fwd")
            loss.backward()
            del loss
            job.world.mark(f"{name}.m{micro}.bwd")
        return
    schedules = import_extra(f"{CORE}.pipeline_parallel", "measure")

    def forward(_: Any, model: Any) -> tuple[Any, Callable[[Any], tuple[Any, dict[str, Any]]]]:
        arguments = _fill_batch(job, {})
        labels = arguments["input_ids"] if model.module.post_process else None
        return model(**arguments, labels=labels), lambda out: (out.float().mean(), {})

    endless = [iter(range(10**6)) for _ in models]
    schedules.get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=endless if len(models) > 1 else endless[0],
        model=models,
        num_microbatches=int(run.micro_batches),
        seq_length=int(run.seq),
        micro_batch_size=int(run.batch),
        forward_only=False,
    )
    job.world.mark(f"{name}.fwdbwd")
