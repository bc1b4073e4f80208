"""torch.compile: the key of a run file, resolved and checked."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.blocks import Attention, Mlp
from ..modelling.huggingface.attention_kernels import has_flash
from ..run.engine import Engine
from ..run.run import Run
from .models import TrainingConfig

DEFAULT = "default"
CUDA_GRAPHS = (
    "reduce-overhead",
    "max-autotune",
)  # modes with CUDA graphs (_inductor list_mode_options)


def compile_mode(config: TrainingConfig) -> str:
    """The mode of torch.compile; "" where the model is not compiled."""
    if isinstance(config.compile, str):
        return config.compile
    return DEFAULT if config.compile else ""


def compile_problems(run: Run, config: TrainingConfig, engine: Engine) -> Iterator[str]:
    """A sentence for each setting that is not modelled together with torch.compile."""
    if not run.compile:
        return
    what = f"training.compile={str(config.compile).lower()}"
    if engine.name != "pytorch_ddp":
        fix = "use engine pytorch_ddp, or set it to false"
        yield f"{what} is not modelled under {engine.title}; {fix}"
        return
    if run.compile in CUDA_GRAPHS:
        kept = "its CUDA graphs keep memory of their own, which is not modelled"
        yield f"{what}: {kept}; use 'default' or 'max-autotune-no-cudagraphs'"
    for key, value in _other_code(run):
        yield f"{what} is not modelled with {key}={value!r}; leave one of the two out"
    if not _plain_layers(run):
        why = f"the graph of {run.arch.family} models is not modelled"
        yield f"{what}: {why}; set it to false, or use gpu-mem-calc measure"


def _other_code(run: Run) -> Iterator[tuple[str, object]]:
    """Settings whose code torch.compile treats in ways that are not modelled."""
    if run.attention != "sdpa":
        yield "training.attention", run.attention
    if run.loss != "full":
        yield "training.loss", run.loss
    if run.label_smoothing:
        yield "training.label_smoothing", run.label_smoothing
    if run.liger:
        yield "training.liger", list(run.liger)
    if run.quantization is not None:
        yield "training.quantization", run.quantization
    if run.adapter is not None and run.adapter.dora:
        yield "training.lora.dora", True
    if run.recompute not in ("none", "full") or run.rule.offload:
        yield "training.recompute", run.recompute
    if run.recompute == "full" and run.reentrant:
        yield "training.checkpoint_reentrant", True
    if run.rollout is not None:
        yield "training.generation", "policy"


def _plain_layers(run: Run) -> bool:
    """Whether all layers have attention in SDPA's kernels and a plain MLP."""
    if run.record is not None or run.arch.tower or run.arch.implementation != "transformers":
        return False
    if run.precision.startswith("bf16") and not has_flash(run.compute_capability):
        return False
    for layer, _, _ in run.arch.runs:
        mixer = layer.mixer
        if not (isinstance(mixer, Attention) and isinstance(layer.mlp, Mlp)):
            return False
        if mixer.alibi or mixer.always_masked or not mixer.sdpa:
            return False
    return True


def compile_note(run: Run) -> Iterator[str]:
    """What is assumed of the compiled graph."""
    if run.compile:
        graph = "the model is taken to be one graph, which also returns the logits"
        yield f"training.compile: {graph}, so that backward has zeros of their size"
