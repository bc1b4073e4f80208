"""The walk of a layer of transformers' models under its recompute policy, and where it is written
what layers and the head keep and need.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.remember import remembered
from ...ledger.source import Source, code
from ...models.arch.arch import TRANSFORMERS as OWN_CODE
from ...models.arch.arch import Arch, Layer
from ...pytorch.autograd.walk import BlockWalk, Checkpoint
from ...pytorch.modelling.huggingface.layer import layer_walk
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...pytorch.modelling.others.implementations import IMPLEMENTATIONS
from ...run.recompute import BY_OPERATION, FULL, SELECTIVE
from ...run.run import Run
from ..losses import TRANSFORMERS, kernel
from .layer_groups import LayerGroup

# Core attention is checkpointed; the layer's checkpoint; what it keeps; early stop; offload;
# modules with a checkpoint each.
Choices = tuple[bool, Checkpoint, tuple[str, ...] | None, bool, bool, tuple[str, ...]]


def group_walk(setting: BlockSetting, group: LayerGroup, *, grad: bool) -> BlockWalk:
    """The walk of one layer of a group; `grad`: its input takes a gradient."""
    whole: Checkpoint = ""
    if group.recompute == FULL:
        whole = "reentrant" if group.reentrant else "hooks"
    keeps = group.rule.keeps if group.recompute == BY_OPERATION else None
    masked, rule = group.masked or setting.compiled, group.rule
    selective = group.recompute == SELECTIVE
    modules = rule.modules if selective else ()
    core = selective and not modules
    choices = (core, whole, keeps, rule.early_stop, group.offloaded, modules)
    return _layer_walk(setting, group.layer, masked, choices, grad)


@remembered(256)
def _layer_walk(
    setting: BlockSetting, layer: Layer, masked: bool, choices: Choices, grad: bool
) -> BlockWalk:
    core, whole, keeps, early_stop, offloaded, modules = choices
    return layer_walk(
        setting,
        layer,
        masked=masked,
        recompute_core=core,
        grad=grad,
        checkpoint=whole,
        keeps=keeps,
        early_stop=early_stop,
        offloaded=offloaded,
        modules=modules,
    )


LAYER_CODE = code("transformers 5.17.0 modeling code, walked with autograd's saving rules")
LIGER_CODE = code("transformers 5.17.0 modeling code with the kernels of liger-kernel 0.8.5 ops/")
SMOOTHED_CODE = code("transformers 5.17.0 trainer_pt_utils.py:426 LabelSmoother")
CHECKPOINT_CODE = code("torch 2.11 utils/checkpoint.py: a checkpoint keeps the layer's input")
OPERATION_CODE = code(
    "torch 2.11 utils/checkpoint.py _CachingTorchDispatchMode: the input, and what a policy keeps "
    "(torchtitan 0.2.2 distributed/activation_checkpoint.py)"
)


class LayerSources(Struct, frozen=True):
    """The sources of what a layer keeps and needs, of the head, and of a layer's checkpoint."""

    layer: Source = LAYER_CODE
    head: Source = LAYER_CODE
    checkpoint: Source = CHECKPOINT_CODE


def run_sources(run: Run) -> LayerSources:
    """The sources of a run of transformers' code: by its kernels and its loss."""
    layer = LIGER_CODE if run.liger else LAYER_CODE
    head = SMOOTHED_CODE if run.label_smoothing else kernel(run, TRANSFORMERS).source
    return layer_sources(run.arch, LayerSources(layer, head))


def layer_sources(arch: Arch, usual: LayerSources) -> LayerSources:
    """The sources of the code that runs a model: its implementation's, or the engine's `usual`."""
    if arch.implementation == OWN_CODE:
        return usual
    own = IMPLEMENTATIONS[arch.implementation].source
    return replace(usual, layer=own, head=own)
