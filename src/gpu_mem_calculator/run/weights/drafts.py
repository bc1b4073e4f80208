"""What servers share of speculative decoding: the layers that a draft is made of."""

from __future__ import annotations

from msgspec.structs import replace

from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, LatentAttention

EAGLE3_VOCAB = 32000  # rows of an EAGLE-3 draft's head, in every draft that is published


MIXERS = (Attention, LatentAttention)


def has_attention(arch: Arch) -> bool:
    """Whether some layer has attention, as a model's own draft has."""
    return any(isinstance(layer.mixer, MIXERS) for layer in arch.layers)


def last_attention_layer(arch: Arch) -> Layer:
    """The last layer with attention; a multi-token-prediction layer is like it."""
    return next(layer for layer in reversed(arch.layers) if isinstance(layer.mixer, MIXERS))


def layers_alone(arch: Arch, layers: tuple[Layer, ...]) -> Arch:
    """A model of these layers, without embedding, final norm and head; it keeps the tower."""
    bare = replace(arch, layers=layers, windows=(), layer_names=(), embedding=(), head_extra=())
    return replace(bare, embedding_norm=None, final_norm=None, head=None)
