"""One rank's part of a served model, and a parameter as that rank stores it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...ledger.num import ceil_div
from ...models.arch.arch import Arch, Layer

# Roles of a parameter: only linear, expert and (where a format says so) head are quantized.
LINEAR, EXPERT, ROUTER, EMBEDDING = "linear", "expert", "router", "embedding"
HEAD, NORM, OTHER = "head", "norm", "other"
# Parts of a model, as reports name them.
ATTENTION, STATE, FEED_FORWARD = "attention", "state space", "feed-forward"
EXPERTS, NORMS, TOWER = "experts", "norms", "vision tower"


class ServerShard(Struct, frozen=True, kw_only=True):
    """One rank's part of a model: its layers, and how many ranks share each dimension.

    - `places`: indices of its layers; `embedding`, `head`: whether it has them
    - `tp`: ranks that share a feed-forward; `attention_tp`: attention heads (fewer with
      data-parallel attention)
    - `ep`: ranks that share the experts, each with whole experts; `expert_tp`: ranks that share
      one expert
    - `vocab_multiple`: the vocabulary is padded to a multiple of it before it is split
    - `embedding_tp`, `head_tp`, `shared_tp`, `tower_tp`: ranks that share the embedding, the head,
      shared experts and the vision tower; 0 means `tp`
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
    tower_tp: int = 0

    def layers(self, arch: Arch) -> Iterator[Layer]:
        """The rank's layers, in order."""
        return (arch.layers[place] for place in self.places)

    def kv_heads(self, heads: int) -> int:
        """Key-value heads on the rank; heads are replicated if there are more ranks than heads."""
        return max(1, heads // self.attention_tp)

    def groups(self, groups: int) -> int:
        """Groups of B and C of a Mamba-2 mixer on the rank; replicated if there are more ranks."""
        return max(1, groups // self.attention_tp)

    def vocab(self, size: int, ranks: int = 0) -> int:
        """Rows of the vocabulary on the rank; `ranks`: that share it, 0 means `tp`."""
        padded = ceil_div(size, self.vocab_multiple) * self.vocab_multiple
        return int(ceil_div(padded, ranks or self.tp))


class ShardedParameter(Struct, frozen=True):
    """A parameter as a rank stores it.

    - `name`: its name in the model; `shape`: its shape on the rank
    - `role`: linear, expert, router, embedding, head, norm or other
    - `layer`: index of its layer, -1 outside the layers; `part`: part of the model
    - `ins`: the dimension of a matrix that is multiplied with the input
    - `bits`: bits of an element, 0: the model's
    - `joint`: the tensor into which servers concatenate it (q, k and v; gate and up)
    """

    name: str
    shape: tuple[int, ...]
    role: str
    layer: int = -1
    part: str = ""
    ins: int = -1
    bits: int = 0
    joint: str = ""

    @property
    def numel(self) -> int:
        """Number of elements on the rank."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def matrix(self) -> tuple[int, int, int]:
        """Number of matrices, and the outputs and inputs of each."""
        copies = self.shape[0] if len(self.shape) == 3 else 1
        ins = self.shape[self.ins]
        return copies, self.numel // (copies * ins), ins
