"""Messages for models and options that Megatron-DeepSpeed's layers do not support."""

from __future__ import annotations

from collections.abc import Iterator

from ....models.arch.blocks import Attention, Mlp
from ....run.run import Run
from ..deepspeed.options import FUSED_ADAM
from ..megatron_lm.options import ENGINE, LOCAL


def model_problems(run: Run, title: str) -> Iterator[str]:
    """One message for each feature that is not modelled.

    Modelled: GPT with softmax attention, one norm before each branch, dense MLPs, the script's own
    kernels and DeepSpeed's fused optimizers.
    """
    if run.options["transformer_implementation"] == ENGINE:
        why = f"{title} runs its own layers"
        yield f"engine.transformer_implementation={ENGINE!r}: {why}; set it to {LOCAL!r}"
    layers, arch = [layer for layer, _, _ in run.arch.runs], run.arch
    lacks = f"{title} does not have"
    one_each = all({place for place, _ in layer.norms} == {"pre", "pre_mlp"} for layer in layers)
    why = ""
    if any(not isinstance(layer.mlp, Mlp) for layer in layers):
        why = f"experts, which {title} runs in DeepSpeed's MoE layer; that is not modelled"
    elif any(not isinstance(layer.mixer, Attention) for layer in layers):
        why = f"latent attention or a state-space mixer, which {lacks}"
    elif any(not _plain(layer.mixer) for layer in layers):
        why = f"norms or sizes inside attention that {lacks}"
    elif not one_each or arch.final_norm is None or arch.embedding_norm is not None:
        why = (
            "other norms than one before attention, one before the MLP and one at the end, "
            f"which {lacks}"
        )
    if why:
        yield f"model family {arch.family!r} has {why}; try megatron_lm"
    adam = run.optimizer in FUSED_ADAM
    if run.options["zero_stage"] == 0 and run.precision != "fp32" and not adam:
        why = "at zero_stage 0 in 16 bits is not modelled, only fused Adam is"
        yield f"training.optimizer={run.optimizer} {why}; try zero_stage 1"
    if run.implementation not in ("", "fused"):
        why = f"{title} runs DeepSpeed's fused optimizers"
        yield f"training.optimizer_implementation={run.implementation}: {why}; leave it out"


def _plain(mixer: object) -> bool:
    """Whether attention has heads of one size and no norm inside; true for other mixers."""
    if not isinstance(mixer, Attention):
        return True  # another check reports those
    return not mixer.norms and mixer.value_dim in (0, mixer.head_dim)
