"""LoRA adapters on a frozen model, made by PEFT."""

from __future__ import annotations

from typing import Any

from .job import Job
from .losses import use_kernels
from .model import build, import_extra, layers
from .quantized import quantized_model
from .recompute import recompute


def add_adapters(job: Job, model: Any = None) -> Any:
    """The run's model, frozen, with trainable adapters; built here on the GPU, unless `model` is
    given, which stays where it is.
    """
    run, given = job.resolved.run, model is not None
    assert run.adapter is not None
    if not given:
        model = quantized_model(job) if run.quantization else build(job, job.world.device)
    use_kernels(job, model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if run.recompute != "none":
        recompute(run, model, layers(model))
        model.enable_input_require_grads()
    peft = import_extra("peft", "torch")
    adapter = run.adapter
    config = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.rank,
        lora_dropout=adapter.dropout,
        use_dora=adapter.dora,
        target_modules=sorted(adapter.targets),
        task_type="SEQ_CLS" if run.loss == "reward" else "CAUSAL_LM",
    )
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=adapter.bits == 32)
    return model if given else model.to(job.world.device)
