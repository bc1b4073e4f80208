"""One rank's part of a served model, and a parameter as that rank stores it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..ledger.num import ceil_div
from ..model.arch import Arch, Layer

# What a parameter is: only the first two are ever quantized.
LINEAR, EXPERT, ROUTER, EMBEDDING, HEAD, NORM, OTHER = (
    "linear", "expert", "router", "embedding", "head", "norm", "other")  # fmt: skip
# Where it stands, for people.
ATTENTION, STATE, FEED_FORWARD, EXPERTS, NORMS, TOWER = (
    "attention", "state space", "feed-forward", "experts", "norms", "vision tower")  # fmt: skip


class ServerShard(Struct, frozen=True, kw_only=True):
    """One rank's part: its layers, and along what they are cut.

    Attention may be cut over fewer ranks than feed-forwards (data-parallel attention), and so may
    the embedding, the head and shared experts: 0 means `tp`. Experts are spread whole over `ep`
    ranks and each cut over `expert_tp`. A vocabulary is padded to a multiple of `vocab_multiple`
    before it is cut.
    """

    places: range
    embedding: bool = True
    head: bool = True
    tp: int = 1
    attention_tp: int = 1
    ep: int = 1
    expert_tp: int = 1
    vocab_multiple: int = 1
    embedding_tp: int = 0
    head_tp: int = 0
    shared_tp: int = 0

    def layers(self, arch: Arch) -> Iterator[Layer]:
        """Its layers."""
        return (arch.layers[place] for place in self.places)

    def kv_heads(self, heads: int) -> int:
        """Key-value heads on the rank: a head that is not cut is repeated."""
        return max(1, heads // self.attention_tp)

    def groups(self, groups: int) -> int:
        """Groups of B and C of a Mamba-2 mixer on the rank: repeated where they are too few."""
        return max(1, groups // self.attention_tp)

    def vocab(self, size: int, ranks: int = 0) -> int:
        """Rows of the vocabulary on the rank."""
        padded = ceil_div(size, self.vocab_multiple) * self.vocab_multiple
        return int(ceil_div(padded, ranks or self.tp))


class ShardedParameter(Struct, frozen=True):
    """A parameter as a rank holds it: its name in the model, its cut shape, and what it is.

    `part` is where it stands, `ins` which dimension of a matrix is multiplied with the input,
    `bits` its width where that is not the model's, `joint` the tensor that engines make of it and
    its neighbours (q, k and v; gate and up).
    """

    name: str
    shape: tuple[int, ...]
    role: str  # linear, expert, router, embedding, head, norm, other
    layer: int = -1
    part: str = ""
    ins: int = -1
    bits: int = 0
    joint: str = ""

    @property
    def numel(self) -> int:
        """Elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def matrix(self) -> tuple[int, int, int]:
        """How many matrices it is, and the outputs and inputs of each."""
        copies = self.shape[0] if len(self.shape) == 3 else 1
        ins = self.shape[self.ins]
        return copies, self.numel // (copies * ins), ins
