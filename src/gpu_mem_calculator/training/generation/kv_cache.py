"""What a model caches of a sequence while it generates, layer by layer, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import sized
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, Indexer, LatentAttention, Mixer, Recurrence, StateSpace
from ...run.weights.shards import ServerShard

FULL, WINDOW, LATENT, STATE = "full", "window", "latent", "state"
INDEX, CROSS = "index", "cross"  # an indexer's keys; keys and values of an encoder's output
RowBytes = Callable[[int], int]  # bytes of one attention head's key or value, from its elements


class LayerState(Struct, frozen=True, kw_only=True):
    """What equal layers cache: of every token, of the last `window` tokens, or of a whole sequence.

    - `kind`: FULL, WINDOW, LATENT, STATE, INDEX or CROSS; `places`: the layers' indices.
    - `token_bytes`: one token in one layer; `state_bytes`: one sequence of any length in one layer.
    - `encoder_len`: tokens of the encoder that cross-attention caches.
    """

    kind: str
    places: tuple[int, ...]
    token_bytes: int = 0
    state_bytes: int = 0
    window: int | None = None
    encoder_len: int = 0

    def tokens(self, context: int) -> int:
        """Cached tokens of a sequence of `context` tokens."""
        if self.kind == CROSS:
            return self.encoder_len
        return context if self.window is None else min(context, self.window)

    def sequence_bytes(self, context: int) -> int:
        """Bytes of one sequence of `context` tokens in all of these layers."""
        return len(self.places) * (self.token_bytes * self.tokens(context) + self.state_bytes)


def unscaled_row(bits: int) -> RowBytes:
    """Bytes of a key or value of `bits` for each element, without scales."""
    return lambda elements: -(sized(-elements, bits))


def cached_states(
    arch: Arch, shard: ServerShard, row: RowBytes, *, state_bits: int, conv_bits: int
) -> tuple[LayerState, ...]:
    """The cache of a rank's layers, equal layers together.

    `row` gives the bytes of a key or value; `state_bits` and `conv_bits` are the widths of scanned
    states and of a convolution's inputs.
    """
    groups: dict[LayerState, list[int]] = {}
    for place in shard.places:
        window = arch.windows[place] if arch.windows else None
        for one in layer_cache(arch.layers[place], window, shard, row, state_bits, conv_bits):
            if one.kind == CROSS:
                one = replace(one, encoder_len=arch.encoder_len)
            groups.setdefault(one, []).append(place)
    return tuple(replace(one, places=tuple(places)) for one, places in groups.items())


def has_cache(arch: Arch) -> bool:
    """Whether a model caches anything of a sequence; an encoder alone does not."""
    return any(
        True
        for layer, _, _ in arch.runs
        for _ in layer_cache(layer, None, ServerShard(places=range(0)), unscaled_row(16), 16, 16)
    )


def layer_cache(
    layer: Layer,
    window: int | None,
    shard: ServerShard,
    row: RowBytes,
    state_bits: int,
    conv_bits: int,
) -> Iterator[LayerState]:
    """What one layer caches; an encoder's layers cache nothing."""
    if layer.kind == "encoder":
        return
    for mixer in layer.mixers:
        yield from mixer_cache(mixer, window, shard, row)
        state = state_bytes(mixer, shard, state_bits, conv_bits)
        if state:
            yield LayerState(kind=STATE, places=(), state_bytes=state)


def mixer_cache(
    mixer: Mixer, window: int | None, shard: ServerShard, row: RowBytes
) -> Iterator[LayerState]:
    """What one mixer caches of each token."""
    index: Indexer | None = None
    if isinstance(mixer, Attention) and not mixer.reuses:
        both = row(mixer.head_dim) + row(mixer.value_dim or mixer.head_dim)
        kind = CROSS if mixer.cross else FULL if window is None else WINDOW
        yield LayerState(
            kind=kind,
            places=(),
            window=None if mixer.cross else window,
            token_bytes=shard.kv_heads(mixer.kv_heads) * both,
        )
        index = mixer.index
    elif isinstance(mixer, LatentAttention):
        yield LayerState(kind=LATENT, places=(), token_bytes=row(mixer.kv_rank + mixer.rope_dim))
        index = mixer.index
    if index is not None:
        yield LayerState(kind=INDEX, places=(), token_bytes=row(index.key_dim))


def state_bytes(mixer: Mixer, shard: ServerShard, state_bits: int, conv_bits: int) -> int:
    """Bytes that one mixer keeps of a whole sequence: a scanned state, and a convolution's inputs.

    Mamba-2's groups are sharded with the heads, and replicated where there are more ranks than
    groups (vllm 0.11.0 mamba_utils.py extra_groups_for_head_shards).
    """
    ranks = shard.attention_tp
    if isinstance(mixer, StateSpace):
        groups = ranks if mixer.groups % ranks else mixer.groups
        channels = mixer.inner + (2 * groups * mixer.state if mixer.version == 2 else 0)
        scanned, inputs = mixer.inner * mixer.state, channels * (mixer.conv - 1)
    elif isinstance(mixer, Recurrence):
        scanned, inputs = mixer.state_elements, mixer.conv_elements
    else:
        return 0
    return sized(scanned // ranks, state_bits) + sized(inputs // ranks, conv_bits)


def token_bytes(caches: tuple[LayerState, ...]) -> int:
    """Bytes of one more token of a long sequence: windows are full, and states do not grow."""
    growing = (one for one in caches if one.window is None and one.kind != CROSS)
    return sum(one.token_bytes * len(one.places) for one in growing)


def sequence_bytes(caches: tuple[LayerState, ...], context: int) -> int:
    """Bytes of one sequence of `context` tokens, not rounded to pages."""
    return sum(one.sequence_bytes(context) for one in caches)
