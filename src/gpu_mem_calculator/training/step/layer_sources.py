"""Where it is written what layers and the head keep and need."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.source import Source, code
from ...models.arch.arch import Arch
from ...pytorch.modelling.others.implementations import IMPLEMENTATIONS
from ...run.run import Run

LAYER_CODE = code("transformers 5.17.0 modeling code, walked with autograd's saving rules")
LOSS_CODE = code("transformers 5.17.0 loss/loss_utils.py:51 ForCausalLMLoss")
LIGER_CODE = code("transformers 5.17.0 modeling code with the kernels of liger-kernel 0.8.5 ops/")
SMOOTHED_CODE = code("transformers 5.17.0 trainer_pt_utils.py:426 LabelSmoother")
LOSS_CODES = {
    "full_no_upcast": code("torch 2.11 aten/src/ATen/native/LossNLL.cpp cross_entropy_loss"),
    "flash_fused": code("flash-attn 2.8.3 flash_attn/ops/triton/cross_entropy.py"),
    "flash_fused_inplace": code("flash-attn 2.8.3 flash_attn/ops/triton/cross_entropy.py"),
    "flash_fused_no_upcast": code("flash-attn 2.8.3 flash_attn/ops/triton/cross_entropy.py"),
    "liger": code("liger-kernel 0.8.5 ops/cross_entropy.py"),
    "liger_fused": code("liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py"),
    "chunked": code("trl 1.16.0 kernels/chunked_logprob.py ChunkedLogProbFunction"),
    "reward": code("trl 1.16.0 trainer/reward_trainer.py compute_loss"),
    "cut": code("cut-cross-entropy 25.1.1 cce.py LinearCrossEntropyFunction"),
}
CHECKPOINT_CODE = code("torch 2.11 utils/checkpoint.py: a checkpoint keeps the layer's input")
OPERATION_CODE = code(
    "torch 2.11 utils/checkpoint.py _CachingTorchDispatchMode: the input, and what a policy keeps "
    "(torchtitan 0.2.2 distributed/activation_checkpoint.py)"
)


class LayerSources(Struct, frozen=True):
    """The sources of what a layer keeps and needs, of the head, and of a layer's checkpoint."""

    layer: Source = LAYER_CODE
    head: Source = LOSS_CODE
    checkpoint: Source = CHECKPOINT_CODE


def run_sources(run: Run) -> LayerSources:
    """The sources of a run of transformers' code: by its kernels and its loss."""
    layer = LIGER_CODE if run.liger else LAYER_CODE
    head = SMOOTHED_CODE if run.label_smoothing else LOSS_CODES.get(run.loss, LOSS_CODE)
    return layer_sources(run.arch, LayerSources(layer, head))


def layer_sources(arch: Arch, usual: LayerSources) -> LayerSources:
    """The sources of the code that runs a model: its implementation's, or the engine's `usual`."""
    own = IMPLEMENTATIONS.get(arch.implementation)
    return usual if own is None else replace(usual, layer=own.source, head=own.source)
