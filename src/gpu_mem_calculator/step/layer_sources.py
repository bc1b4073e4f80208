"""Where it is written what layers and the head keep and need."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.source import Source, code
from ..model.arch import Arch
from ..modelling.others.implementations import IMPLEMENTATIONS

LAYER_CODE = code("transformers 5.17.0 modeling code, walked with autograd's saving rules")
LOSS_CODE = code("transformers 5.17.0 loss/loss_utils.py:51 ForCausalLMLoss")
CHECKPOINT_CODE = code("torch 2.11 utils/checkpoint.py: a checkpoint keeps the layer's input")


class LayerSources(Struct, frozen=True):
    """The sources of what a layer keeps and needs, of the head, and of a layer's checkpoint."""

    layer: Source = LAYER_CODE
    head: Source = LOSS_CODE
    checkpoint: Source = CHECKPOINT_CODE


def layer_sources(arch: Arch, usual: LayerSources) -> LayerSources:
    """The sources of the code that runs a model: its implementation's, or the engine's `usual`."""
    own = IMPLEMENTATIONS.get(arch.implementation)
    return usual if own is None else replace(usual, layer=own.source, head=own.source)
