"""Operations of mixers other than matrix products with weights: scores, sums over tokens, states.

Legend: a heads, d head size, r latent rank, d_n, d_r plain and rotary part of a latent's key.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention, Mixer, Recurrence, StateSpace
from ...run.weights.shards import ServerShard

# Products with the whole state for each token: one updates it, one reads it; the delta rule first
# reads the value that the state has for the key.
STATE_PRODUCTS = {"short_conv": 2, "lightning": 2, "gated_delta": 3, "delta": 3}


class MixerWork(Struct, frozen=True, kw_only=True):
    """Multiplications of `count` equal mixers of a rank, each for one token.

    - `used`: "encoder", "decoder" or "cross"
    - `prompt`, `step`: for each token that it attends to, in a prompt and in a decode step
    - `each`: independent of the tokens it attends to
    - `window`: how many tokens back it attends; None: all
    - `chunked`: only within blocks of `window` tokens (Llama 4)
    - `chosen`: the most tokens that sparse attention selects; 0: all
    - `index`: of the indexer that selects them, for each token in the context
    """

    count: int
    used: str = "decoder"
    prompt: int = 0
    step: int = 0
    each: int = 0
    window: int | None = None
    chunked: bool = False
    chosen: int = 0
    index: int = 0

    def in_prompt(self, prompt: int) -> float:
        """Multiplications of one token, averaged over a prompt."""
        if self.used == "encoder":
            return self.prompt * prompt + self.each
        attended = mean_attended(prompt, self.chosen or self.window, chunked=self.chunked)
        return self.prompt * attended + self.index * mean_attended(prompt, None) + self.each

    def in_step(self, context: int) -> float:
        """Multiplications of one token after `context` others."""
        attended = step_attended(context, self.chosen or self.window, chunked=self.chunked)
        return self.step * attended + self.index * context + self.each


def mean_attended(prompt: int, most: int | None, *, chunked: bool = False) -> float:
    """Tokens that a token of a prompt attends to on average, itself included; at most `most`."""
    if most is None or prompt <= most:
        return (prompt + 1) / 2
    if chunked:
        blocks, rest = divmod(prompt, most)
        return (blocks * most * (most + 1) + rest * (rest + 1)) / 2 / prompt
    return most - most * (most - 1) / 2 / prompt


def step_attended(context: int, most: int | None, *, chunked: bool = False) -> int:
    """Tokens that the last token of a context attends to; at most `most`."""
    if most is None or context <= most:
        return context
    return (context - 1) % most + 1 if chunked else most


def mixings(arch: Arch, shard: ServerShard) -> tuple[MixerWork, ...]:
    """The mixers of a rank; equal ones are one MixerWork with their count."""
    counts: dict[MixerWork, int] = {}
    for place in shard.places:
        layer = arch.layers[place]
        window = arch.windows[place] if arch.windows else None
        for mixer in layer.mixers:
            one = _one_mixer(mixer, window, shard.attention_tp, arch.family)
            if layer.kind == "encoder":
                one = MixerWork(count=1, used="encoder", prompt=one.prompt, each=one.each)
            counts[one] = counts.get(one, 0) + 1
    return tuple(replace(one, count=number) for one, number in counts.items())


def _one_mixer(mixer: Mixer, window: int | None, ranks: int, family: str) -> MixerWork:
    if isinstance(mixer, Attention):
        elements = int(ceil_div(mixer.heads, ranks)) * (
            mixer.head_dim + (mixer.value_dim or mixer.head_dim)
        )
        return MixerWork(
            count=1,
            used="cross" if mixer.cross else "decoder",
            prompt=elements,
            step=elements,
            window=window,
            chunked=window is not None and family.startswith("llama4"),
        )
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, ranks)
    if isinstance(mixer, StateSpace):
        return MixerWork(count=1, each=2 * mixer.inner * mixer.state // ranks)
    assert isinstance(mixer, Recurrence)
    return MixerWork(count=1, each=STATE_PRODUCTS[mixer.kind] * mixer.state_elements // ranks)


def _latent(mixer: LatentAttention, ranks: int) -> MixerWork:
    """In a prompt keys and values are projected up from the latents: a (d_n + d_r + d_v) for each
    token attended to. A step works on the latents, a (2 r + d_r): the up-projection is absorbed
    into query and output, which costs as much as projecting one token (DeepSeek-V2, section 2.1).
    """
    heads, index = int(ceil_div(mixer.heads, ranks)), mixer.index
    return MixerWork(
        count=1,
        prompt=heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim),
        step=heads * (2 * mixer.kv_rank + mixer.rope_dim),
        chosen=mixer.chosen,
        index=0 if index is None else index.heads * index.key_dim,
    )
