"""The passes of a generation, and what each leaves in a layer's cache.

The prompt is one pass, then one token at a time. A growing cache (transformers' DynamicCache) is
made anew in every pass, a token longer, and the old one goes. A static cache is made whole in the
prompt's pass and written over. Beams copy every layer's cache behind each pass.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from ..ledger.num import Num, choose, smaller
from ..model.arch import Arch, Layer
from ..step.layer_groups import same_for_all, slides

STEPS, ENDS = 32, 2  # decoding steps that are played, and how many of them at each end
PROMPT, FIRST, LAST = "prefill", "decode.first", "decode"  # which pass it is


class LayerKind(Struct, frozen=True, kw_only=True):
    """Equal layers with equal windows, wherever they stand in the stack."""

    layer: Layer
    window: int | None
    title: str
    places: tuple[int, ...]


class CacheMode(Struct, frozen=True, kw_only=True):
    """How generate keeps what it has seen: `room` tokens of a static cache (None: it grows), all
    of them read (`whole`) by eager attention; `beams` of each sequence, and `copies` of it, which
    beams are.
    """

    room: Num = None
    beams: int = 1
    copies: int = 1
    whole: bool = False


class DecodeStep(Struct, frozen=True, kw_only=True):
    """One pass, as one kind of layer sees it: tokens a sequence.

    `seq` are new, `past` are read from the cache, `stored` has memory before it (None: empty),
    `left` behind it, `reordered` when beams have been picked. `number` is how many tokens have been
    chosen before. `masked`: SDPA is given a mask. `logits`: rows that the head makes of a sequence.
    Of a static cache, `room` is what a layer has; `over`: the pass is longer than that, and reads
    its own keys; `rolls`: the oldest make way.
    """

    seq: Num
    past: Num = 0
    stored: Num = None
    left: Num = 0
    reordered: Num = 0
    number: Num = 0
    masked: bool = False
    logits: Num = 1
    room: Num = None
    over: bool = False
    rolls: bool = False


def kinds(arch: Arch, *, windows: bool = True) -> tuple[LayerKind, ...]:
    """The layers of a stack by shape and, where the cache knows of it, window."""
    widths = (arch.windows if windows else ()) or (None,) * len(arch.layers)
    found: list[tuple[Layer, int | None, list[int]]] = []
    for index, (layer, window) in enumerate(zip(arch.layers, widths, strict=True)):
        for known, width, places in found:
            if width == window and (known is layer or known == layer):
                places.append(index)
                break
        else:
            found.append((layer, window, [index]))
    return tuple(
        LayerKind(layer=layer, window=window, places=tuple(places),
             title=f"{layer.kind} layers" if window is None else f"windowed {layer.kind} layers")
        for layer, window, places in found
    )  # fmt: skip


def steps(
    kind: LayerKind, prompt: Num, new_tokens: Num, manner: CacheMode
) -> dict[str, DecodeStep]:
    """The passes: the prompt, the first decoding step, and the last one.

    The prompt's pass gives the first token, so new_tokens - 1 steps follow.
    """
    return {
        PROMPT: prompt_step(kind, prompt, manner),
        FIRST: step(kind, prompt, 1, 0, manner),
        LAST: step(kind, prompt, new_tokens - 1, new_tokens - 2, manner),
    }


def every_step(
    kind: LayerKind, prompt: int, new_tokens: int, manner: CacheMode
) -> dict[str, DecodeStep]:
    """The passes that are played, each with the cache that the one before has left."""
    numbers = played(new_tokens)
    found = {PROMPT: prompt_step(kind, prompt, manner)}
    for before, number in pairwise((0, *numbers)):
        found[f"{LAST}.{number}"] = step(kind, prompt, number, before, manner)
    return found


def played(new_tokens: int) -> tuple[int, ...]:
    """The decoding steps that are played, by their number: all of up to `STEPS`, else two at each
    end and the rest at even distances.

    Each step makes the caches a token longer, so that the blocks of the step before no longer fit:
    the distances must be even. In 14 runs of 48 to 512 tokens 32 steps reserve and need within 2 %
    of what all of them do; at doubling distances they reserve up to 43 % too little.
    """
    count = new_tokens - 1
    if count <= STEPS:
        return tuple(range(1, count + 1))
    gaps = STEPS - 2 * ENDS + 1
    inner = (ENDS + (count - 2 * ENDS) * i // gaps for i in range(1, gaps))
    return (*range(1, ENDS + 1), *inner, *range(count - ENDS + 1, count + 1))


def prompt_step(kind: LayerKind, prompt: Num, manner: CacheMode) -> DecodeStep:
    """The prompt's pass."""
    if manner.room is not None:
        return _static_prompt(kind, prompt, manner)
    return DecodeStep(seq=prompt, left=prompt, reordered=_viewed(kind, prompt),
                masked=kind.window is not None and slides(prompt, kind.window))  # fmt: skip


def _viewed(kind: LayerKind, tokens: Num) -> Num:
    """Tokens that a growing cache shows: a window's is a view of its last `window - 1`
    (transformers 5.17.0 cache_utils.py DynamicSlidingWindowLayer.update).
    """
    return tokens if kind.window is None else smaller(tokens, kind.window - 1)


def step(kind: LayerKind, prompt: Num, number: Num, before: Num, manner: CacheMode) -> DecodeStep:
    """A decoding step behind another one (0: the prompt).

    Behind a step a window's cache has memory for `window` tokens, behind the prompt for all of it.
    What beams have copied has memory for what it shows.
    """
    if manner.room is not None:
        return _static_step(kind, prompt, number, manner)
    past = _viewed(kind, prompt + number - 1)
    if kind.window is None or manner.beams > 1:
        stored = _viewed(kind, prompt + before)
    else:
        stored = choose(before > 0, smaller(prompt + before, kind.window), prompt)
    return DecodeStep(
        seq=1, past=past, stored=stored, left=past + 1, reordered=_viewed(kind, prompt + number),
        number=number, masked=kind.window is not None and slides(1 + past, kind.window),
    )  # fmt: skip


def _room(kind: LayerKind, manner: CacheMode) -> Num:
    """Tokens that a layer's static cache holds (StaticSlidingWindowLayer)."""
    return manner.room if kind.window is None else smaller(manner.room, kind.window)


def _static_prompt(kind: LayerKind, prompt: Num, manner: CacheMode) -> DecodeStep:
    """A prompt fills a static cache. SDPA reads its own tokens alone where it needs no mask
    (integrations/sdpa_attention.py:142); else, and in eager attention, all there is room for is
    read. A prompt longer than a window reads its own keys (cache_utils.py
    StaticSlidingWindowLayer.update).
    """
    room = _room(kind, manner)
    over = kind.window is not None and same_for_all(prompt > room)
    width = prompt if over else room
    masked = same_for_all(prompt == 1) or (kind.window is not None and slides(width, kind.window))
    keys = width if masked or manner.whole else prompt
    return DecodeStep(seq=prompt, past=keys - prompt, left=room, reordered=room, masked=masked,
                room=room, over=over)  # fmt: skip


def _static_step(kind: LayerKind, prompt: Num, number: Num, manner: CacheMode) -> DecodeStep:
    """One token more in a static cache: all of it is read, behind a mask (masking_utils.py:921)."""
    room = _room(kind, manner)
    rolls = kind.window is not None and same_for_all(prompt + number > room)
    return DecodeStep(seq=1, past=room - 1, stored=room, left=room, reordered=room, number=number,
                masked=True, room=room, rolls=rolls)  # fmt: skip
