"""The properties that every kind of mixer has, so that callers need not ask which kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from .blocks import Indexer


class MixerDefaults(Struct, frozen=True):
    """What every kind of mixer can be asked; each overrides what concerns it with a field."""

    @property
    def rotary_dim(self) -> int:
        """Elements of each attention head with rotary embedding; latent attention: `rope_dim`."""
        return 0

    @property
    def rope_dim(self) -> int:
        """Elements of each head of latent attention with rotary embedding."""
        return 0

    @property
    def rotary_width(self) -> int:
        """Elements of each head with rotary embedding, in any kind of attention."""
        return self.rotary_dim or self.rope_dim

    @property
    def residual_dropout(self) -> float:
        """Rate of the dropout after the output projection."""
        return 0.0

    @property
    def sdpa(self) -> bool:
        """Whether transformers has a scaled_dot_product_attention path, or needs none."""
        return True

    @property
    def always_masked(self) -> bool:
        """Whether a mask is passed with any attention implementation."""
        return False

    @property
    def alibi(self) -> bool:
        """Whether positions are ALiBi's biases."""
        return False

    @property
    def float_bias(self) -> bool:
        """Whether eager attention adds a bias in fp32."""
        return False

    @property
    def cross(self) -> bool:
        """Whether keys and values come from an encoder."""
        return False

    @property
    def index(self) -> Indexer | None:
        """The indexer of sparse attention."""
        return None
