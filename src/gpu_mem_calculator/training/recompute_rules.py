"""Policies of recompute that are impossible or would have no effect: a sentence for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..models.arch.blocks import LatentAttention, Mlp, Moe
from ..run.engine_row import MEGATRON_CORE
from ..run.recompute import BY_OPERATION, EVERY_SECOND_MM, EVERYTHING, FULL, MEGATRON, SELECTIVE
from .engines import engine_row

if TYPE_CHECKING:
    from ..run.engine import Engine
    from ..run.run import Run

PATH = "training.recompute"
DEEPSPEED_OPTIONS = ("partition_activations", "cpu_checkpointing")
FUSED = "transformer_engine"


def recompute_problems(run: Run, engine: Engine) -> Iterator[str]:
    """A sentence for each problem of the run's policy."""
    rule = run.rule
    if rule.framework == MEGATRON and engine_row(engine.name).layers != MEGATRON_CORE:
        fix = "use 'full', 'op', or keys of torchtitan or transformers"
        yield f"{PATH} has Megatron's keys, and {engine.title} does not run its layers; {fix}"
    elif rule.framework not in ("", MEGATRON) and not engine.transformers:
        fix = "use Megatron's: recompute_granularity, recompute_method, recompute_modules"
        yield f"{PATH} has keys of {rule.framework}, and {engine.title} has its own; {fix}"
    elif rule.framework == MEGATRON:
        yield from _megatron_problems(run)
    elif rule != EVERYTHING:
        yield from _torch_problems(run, engine)


def _torch_problems(run: Run, engine: Engine) -> Iterator[str]:
    """Problems of policies of torch's checkpoint, for engines that run transformers."""
    rule, stage = run.rule, run.options.get("zero_stage", 0)
    if run.recompute == BY_OPERATION:
        yield from _operation_problems(run)
        if stage == 3:
            fix = "use 'full', ZeRO-2, or engine fsdp"
            yield f"{PATH} by operation is not modelled under ZeRO-3; {fix}"
    if stage == 3 and run.recompute == FULL and not rule.early_stop:
        why = "recompute without early_stop ends with weights released, and their backward fails"
        yield f"{PATH} under ZeRO-3: {why}; set early_stop=true, or use every_n_layers"
    if rule.modules:
        yield from _module_problems(run)
    if run.reentrant and not rule.early_stop and run.recompute == FULL:
        fix = "leave training.checkpoint_reentrant out"
        yield f"{PATH}: a reentrant checkpoint has no early_stop; {fix}"
    if rule.offload and engine_row(engine.name).zero_hooks:
        yield f"{PATH}.offload=true: DeepSpeed has its own; use engine.cpu_checkpointing=true"
    for name in DEEPSPEED_OPTIONS:
        if run.options.get(name) and (rule.offload or not rule.early_stop):
            why = (
                "replaces torch's checkpoint, which training.recompute sets; leave one of them out"
            )
            yield f"engine.{name}=true {why}"
    if int(run.mesh.pp) > 1:
        yield f"{PATH}: {engine.title}'s pipeline recomputes whole layers; use 'full' or 'none'"
    if run.record is not None and (
        rule.offload or not rule.early_stop or run.recompute == BY_OPERATION
    ):
        yield f"{PATH}: a recorded module is recomputed in whole layers; use 'full' or 'none'"


def _module_problems(run: Run) -> Iterator[str]:
    """What is not modelled under a checkpoint around modules: autocast keeps their weights' casts
    until forward ends; a frozen model's first layer takes no gradient.
    """
    if run.autocast or (
        run.precision.endswith("mixed") and "gradient_as_bucket_view" in run.options
    ):
        yield f"{PATH} of modules is not modelled under autocast; use precision 'bf16_pure' or fsdp"
    if run.adapter is not None or run.liger:
        yield f"{PATH} of modules is not modelled with training.lora or training.liger; use 'full'"
    if any(layer.mixer is None or layer.mlp is None for layer, _, _ in run.arch.runs):
        yield f"{PATH} of modules is modelled for layers with attention and an MLP; use 'full'"
    if run.options.get("zero_stage") == 3:
        yield f"{PATH} of modules is not modelled under ZeRO-3; use 'full', ZeRO-2 or engine fsdp"


def _operation_problems(run: Run) -> Iterator[str]:
    """torch refuses that a kept result is changed in place (_VersionWrapper), as PEFT does."""
    if run.adapter is not None:
        yield f"{PATH} by operation is not modelled with training.lora; use 'full'"
    if run.attention != "sdpa" and EVERY_SECOND_MM not in run.rule.keeps:
        kept = "keeps the results of torch's own attention kernels; use attention 'sdpa'"
        yield f"{PATH} with training.attention={run.attention!r}: it {kept}"
    if run.liger:
        yield f"{PATH} by operation is not modelled with training.liger; leave one of them out"


def _megatron_problems(run: Run) -> Iterator[str]:
    """megatron-core 0.19.2 transformer_config.py:1784-1820, transformer_layer.py:450-516."""
    layers = [layer for layer, _, _ in run.arch.runs]
    experts = [layer.mlp for layer in layers if isinstance(layer.mlp, Moe)]
    uneven = bool(run.stage_counts) or any(run.ends_counted)
    if run.rule.layers_together > 1 and (len(layers) > 1 or experts or uneven):
        key = f"{PATH}.recompute_num_layers={run.rule.layers_together}"
        equal = "equal layers without experts, as many on each stage"
        yield f"{key} with 'uniform' is modelled for {equal}; use 1"
    fused = run.options.get("transformer_implementation") == FUSED
    needs = {
        "layernorm": (
            not fused or bool(experts),
            "norms that Transformer Engine does not fuse: experts, or the local spec",
        ),
        "mlp": (any(isinstance(layer.mlp, Mlp) for layer in layers), "layers with a dense MLP"),
        "moe": (bool(experts), "experts"),
        "moe_act": (
            bool(experts) and fused,
            f"experts, and engine.transformer_implementation={FUSED!r}",
        ),
        "mla_up_proj": (
            any(isinstance(layer.mixer, LatentAttention) for layer in layers),
            "latent attention",
        ),
        "shared_experts": (any(one.shared is not None for one in experts), "a shared expert"),
    }
    for name in run.rule.modules:
        works, what = needs.get(name, (True, ""))
        if not works:
            yield f"{PATH}.recompute_modules: {name!r} needs {what}; leave it out"
    if "moe" in run.rule.modules:
        for name in ("moe_act", "shared_experts"):
            if name in run.rule.modules:
                yield f"{PATH}.recompute_modules: 'moe' recomputes {name!r} as well; leave it out"


def recompute_note(run: Run, engine: Engine) -> Iterator[str]:
    """A sentence where selective recompute saves nothing: attention kernels keep no scores."""
    fused = engine.transformers and run.attention != "eager" and not run.rule.modules
    if run.recompute == SELECTIVE and fused and run.record is None:
        what = "recomputes the scores of attention, which this attention kernel does not keep"
        meant = f"torchtitan's selective recompute is {PATH}='op'"
        yield f"training.activation_checkpointing='selective' {what}, so it saves nothing; {meant}"
