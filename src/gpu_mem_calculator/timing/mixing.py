"""What mixers compute beside their matrices: scores and sums over tokens, states that are updated.

Legend: a heads, d head size, r latent rank, d_n, d_r plain and rotary part of a latent's key.
"""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import ceil_div
from ..model.arch import Arch
from ..model.blocks import Attention, LatentAttention, Mixer, Recurrence, StateSpace
from ..weights.shards import ServerShard

# Products with the whole state for each token: it is updated and read; the delta rule also reads
# what it holds for the key before.
STATE_PRODUCTS = {"gated_delta": 3, "delta": 3}


class MixerWork(Struct, frozen=True, kw_only=True):
    """Equal mixers of a rank: multiplications for each token that another one sees, in a prompt and
    in a step, and for each token whatever it sees.

    `window`: how far back it sees; `chunked`: only within blocks of that many (Llama 4); `chosen`:
    at most so many tokens, of which an indexer with `index` multiplications each is asked.
    """

    count: int
    used: str = "decoder"  # encoder, decoder, cross
    prompt: int = 0
    step: int = 0
    each: int = 0
    window: int | None = None
    chunked: bool = False
    chosen: int = 0
    index: int = 0

    def in_prompt(self, prompt: int) -> float:
        """Multiplications of one token in the mean over a prompt."""
        if self.used == "encoder":
            return self.prompt * prompt + self.each
        seen = mean_seen(prompt, self.chosen or self.window, chunked=self.chunked)
        return self.prompt * seen + self.index * mean_seen(prompt, None) + self.each

    def in_step(self, context: int) -> float:
        """Multiplications of one token behind so many."""
        seen = step_seen(context, self.chosen or self.window, chunked=self.chunked)
        return self.step * seen + self.index * context + self.each


def mean_seen(prompt: int, most: int | None, *, chunked: bool = False) -> float:
    """Tokens that one of a prompt sees in the mean, itself among them."""
    if most is None or prompt <= most:
        return (prompt + 1) / 2
    if chunked:
        blocks, rest = divmod(prompt, most)
        return (blocks * most * (most + 1) + rest * (rest + 1)) / 2 / prompt
    return most - most * (most - 1) / 2 / prompt


def step_seen(context: int, most: int | None, *, chunked: bool = False) -> int:
    """Tokens that the last of so many sees."""
    if most is None or context <= most:
        return context
    return (context - 1) % most + 1 if chunked else most


def mixings(arch: Arch, shard: ServerShard) -> tuple[MixerWork, ...]:
    """Those of a rank, equal ones in one."""
    counts: dict[MixerWork, int] = {}
    for place in shard.places:
        layer = arch.layers[place]
        window = arch.windows[place] if arch.windows else None
        for mixer in layer.mixers:
            one = _mixing(mixer, window, shard.attention_tp, arch.family)
            if layer.kind == "encoder":
                one = MixerWork(count=1, used="encoder", prompt=one.prompt, each=one.each)
            counts[one] = counts.get(one, 0) + 1
    return tuple(
        MixerWork(count=number, used=one.used, prompt=one.prompt, step=one.step, each=one.each,
               window=one.window, chunked=one.chunked, chosen=one.chosen, index=one.index)
        for one, number in counts.items()
    )  # fmt: skip


def _mixing(mixer: Mixer, window: int | None, ranks: int, family: str) -> MixerWork:
    if isinstance(mixer, Attention):
        wide = _cut(mixer.heads, ranks) * (mixer.head_dim + (mixer.value_dim or mixer.head_dim))
        return MixerWork(
            count=1, used="cross" if mixer.cross else "decoder", prompt=wide, step=wide,
            window=window, chunked=window is not None and family.startswith("llama4"),
        )  # fmt: skip
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, ranks)
    if isinstance(mixer, StateSpace):
        return MixerWork(count=1, each=2 * mixer.inner * mixer.state // ranks)
    assert isinstance(mixer, Recurrence)
    passes = STATE_PRODUCTS.get(mixer.kind, 2)
    return MixerWork(count=1, each=passes * mixer.state_elements // ranks)


def _latent(mixer: LatentAttention, ranks: int) -> MixerWork:
    """A prompt's keys and values are unpacked, a (d_n + d_r + d_v) for each token seen; a step
    works on the latents themselves, a (2 r + d_r): the matrix that unpacks them is multiplied into
    query and output, which costs as much as unpacking one token (DeepSeek-V2, section 2.1).
    """
    heads = _cut(mixer.heads, ranks)
    index = mixer.index
    return MixerWork(
        count=1, prompt=heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim),
        step=heads * (2 * mixer.kv_rank + mixer.rope_dim),
        chosen=mixer.chosen,
        index=0 if index is None else index.heads * index.key_dim,
    )  # fmt: skip


def _cut(heads: int, ranks: int) -> int:
    return int(ceil_div(heads, ranks))
