"""The walk of a layer of transformers' models under its recompute policy."""

from __future__ import annotations

from ...ledger.remember import remembered
from ...models.arch.arch import Layer
from ...pytorch.autograd.walk import BlockWalk, Checkpoint
from ...pytorch.modelling.huggingface.layer import layer_walk
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.recompute import BY_OPERATION, FULL, SELECTIVE
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
