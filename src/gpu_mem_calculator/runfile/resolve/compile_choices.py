"""torch.compile: the key of a run file, resolved and checked."""

from __future__ import annotations

from collections.abc import Iterator

from ...models.arch.blocks import Attention, Mlp
from ...pytorch.modelling.huggingface.attention_kernels import has_flash
from ...run.engine import Engine
from ...run.limits import BoundedLimit
from ...run.recompute import FULL, NONE
from ...run.run import Run
from ...training.losses import DEFAULT as OWN_LOSS
from ..config import TrainingConfig

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
    for setting in _other_code(run):
        yield f"{what} is not modelled with training.{setting}; leave one of the two out"
    if run.options.get("gradient_as_bucket_view"):
        view = "engine.gradient_as_bucket_view=true"
        yield f"{what} is not modelled with {view}; leave one of the two out"
    if not _plain_layers(run):
        why = f"the graph of {run.arch.family} models is not modelled"
        yield f"{what}: {why}; set it to false, or use gpu-mem-calc measure"


def _other_code(run: Run) -> Iterator[str]:
    """Settings whose code torch.compile treats in ways that are not modelled."""
    adapter, policy = run.adapter, run.recompute
    settings = {
        f"attention={run.attention!r}": run.attention != "sdpa",
        f"loss={run.loss!r}": run.loss != OWN_LOSS,
        f"label_smoothing={run.label_smoothing}": run.label_smoothing > 0,
        "liger": run.liger,
        f"quantization={run.quantization!r}": run.quantization,
        "lora.dora=true": adapter is not None and adapter.dora,
        f"recompute={policy!r}": policy not in (NONE, FULL) or run.rule.offload,
        "checkpoint_reentrant=true": policy == FULL and run.reentrant,
        "use_cache=true": run.use_cache,
        f"packed_documents={run.documents}": run.documents > 1,
        "evaluation": run.evaluation is not None,
        "generation": run.rollout is not None,
    }
    return (setting for setting, given in settings.items() if given)


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


def compile_limit(run: Run) -> Iterator[BoundedLimit]:
    """What inductor keeps in a recomputed MLP, which is not counted."""
    if run.compile and run.recompute == FULL:
        why = "inductor keeps buffers of a recomputed MLP for the next layer's"
        size = _reused_bytes(run)
        yield BoundedLimit(key="training.compile", why=why, adds_bytes=size, saves_bytes=0)


def _reused_bytes(run: Run) -> int:
    """Bytes of the widest tensors of an MLP (gate, up and their product, or the two of a plain one)
    that wait for the next layer to write into them (torch 2.13 _inductor/codegen/wrapper.py
    ReuseLine).
    """
    mlps = [layer.mlp for layer, _, _ in run.arch.runs if isinstance(layer.mlp, Mlp)]
    widths = [block.output.ins[1] * (3 if block.gated else 2) for block in mlps]
    bits = 32 if run.precision == "fp32" else 16
    return int(run.batch * run.seq) * max(widths) * bits // 8
