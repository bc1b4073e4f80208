"""The passes of a generation, and the tokens in a layer's cache before and after each.

The prompt is one pass, then each token is one. A growing cache (transformers' DynamicCache) is
allocated again in every pass, a token longer, and the old one is freed. A static cache is allocated
in the prompt's pass at its full length and overwritten. Beams copy every layer's cache after each
pass.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from ...ledger.num import Num, choose, smaller
from ...models.arch.arch import Arch, Layer
from ..step.layer_groups import same_for_all, slides

STEPS, ENDS = 32, 2  # decoding steps that are replayed; consecutive ones at either end
PROMPT, FIRST, LAST = "prefill", "decode.first", "decode"  # names of passes


class LayerKind(Struct, frozen=True, kw_only=True):
    """Equal layers with equal windows; `places` are their indices in the stack."""

    layer: Layer
    window: int | None
    title: str
    places: tuple[int, ...]


class CacheMode(Struct, frozen=True, kw_only=True):
    """How generate caches keys and values.

    - `room`: tokens of a static cache; None: the cache grows.
    - `beams`: beams of each prompt; `copies`: sequences of each prompt, beams or answers.
    - `whole`: a prompt reads all of a static cache, as eager attention does.
    """

    room: Num | None = None
    beams: int = 1
    copies: int = 1
    whole: bool = False


class DecodeStep(Struct, frozen=True, kw_only=True):
    """One pass through one kind of layer. Counts are tokens of one sequence.

    - `seq`: tokens fed in this pass; `past`: cached tokens that they attend to.
    - `stored`: tokens that the cache has memory for before the pass (None: there is no cache yet);
      `left`: after it; `reordered`: after beams are selected.
    - `number`: tokens chosen before this pass.
    - `masked`: SDPA has a mask as argument.
    - `logits`: rows that the head computes.
    - `capacity`: tokens of the layer's static cache; `over`: the pass is longer than that and reads
      its own keys; `rolls`: new tokens replace the oldest ones.
    """

    seq: Num
    past: Num = 0
    stored: Num | None = None
    left: Num = 0
    reordered: Num = 0
    number: Num = 0
    masked: bool = False
    logits: Num = 1
    capacity: Num | None = None
    over: bool = False
    rolls: bool = False


LayerKinds = tuple[LayerKind, ...]
Passes = list[dict[str, DecodeStep]]  # for each kind of layer, its passes by name


def layer_kinds(arch: Arch, *, windows: bool = True) -> LayerKinds:
    """The layers of a stack, grouped by shape and, with `windows`, by attention window."""
    widths = (arch.windows if windows else ()) or (None,) * len(arch.layers)
    groups: list[tuple[Layer, int | None, list[int]]] = []
    for index, (layer, window) in enumerate(zip(arch.layers, widths, strict=True)):
        for known, width, places in groups:
            if width == window and (known is layer or known == layer):
                places.append(index)
                break
        else:
            groups.append((layer, window, [index]))
    return tuple(
        LayerKind(
            layer=layer,
            window=window,
            places=tuple(places),
            title=f"{layer.kind} layers" if window is None else f"windowed {layer.kind} layers",
        )
        for layer, window, places in groups
    )


def rolled_passes(
    kind: LayerKind, prompt: Num, new_tokens: Num, mode: CacheMode
) -> dict[str, DecodeStep]:
    """The passes by name: the prompt, the first decoding step, the last one.

    The prompt's pass gives the first token, so new_tokens - 1 decoding steps follow.
    """
    return {
        PROMPT: prompt_step(kind, prompt, mode),
        FIRST: step(kind, prompt, 1, 0, mode),
        LAST: step(kind, prompt, new_tokens - 1, new_tokens - 2, mode),
    }


def replayed_passes(
    kind: LayerKind, prompt: Num, new_tokens: Num, mode: CacheMode
) -> dict[str, DecodeStep]:
    """The passes that are replayed, by name; each has the cache that the one before has left."""
    numbers = replayed_steps(int(new_tokens))
    passes = {PROMPT: prompt_step(kind, prompt, mode)}
    for before, number in pairwise((0, *numbers)):
        passes[f"{LAST}.{number}"] = step(kind, prompt, number, before, mode)
    return passes


def replayed_steps(new_tokens: int) -> tuple[int, ...]:
    """Numbers of the decoding steps that are replayed: all of up to `STEPS`, else two at each end
    and the rest at even distances.

    Each step makes the caches a token longer, so that memory freed by the step before is too small:
    the distances must be even. In 14 runs of 48 to 512 tokens 32 steps reserve and need within 2 %
    of what all of them do; at doubling distances they reserve up to 43 % too little.
    """
    count = new_tokens - 1
    if count <= STEPS:
        return tuple(range(1, count + 1))
    gaps = STEPS - 2 * ENDS + 1
    inner = (ENDS + (count - 2 * ENDS) * i // gaps for i in range(1, gaps))
    return (*range(1, ENDS + 1), *inner, *range(count - ENDS + 1, count + 1))


def prompt_step(kind: LayerKind, prompt: Num, mode: CacheMode) -> DecodeStep:
    """The prompt's pass through one kind of layer."""
    if mode.room is not None:
        return _static_prompt(kind, prompt, mode)
    return DecodeStep(
        seq=prompt,
        left=prompt,
        reordered=_visible(kind, prompt),
        masked=kind.window is not None and slides(prompt, kind.window),
    )


def _visible(kind: LayerKind, tokens: Num) -> Num:
    """Tokens that a growing cache returns: a window's is a view of its last `window - 1`
    (transformers 5.17.0 cache_utils.py DynamicSlidingWindowLayer.update).
    """
    return tokens if kind.window is None else smaller(tokens, kind.window - 1)


def step(kind: LayerKind, prompt: Num, number: Num, before: Num, mode: CacheMode) -> DecodeStep:
    """Decoding step `number`, which follows step `before` (0: the prompt).

    After a step a window's cache has memory for `window` tokens, after the prompt for all of it. A
    copy for beams has memory for the tokens that the cache returns.
    """
    if mode.room is not None:
        return _static_step(kind, prompt, number, mode)
    past = _visible(kind, prompt + number - 1)
    if kind.window is None or mode.beams > 1:
        stored = _visible(kind, prompt + before)
    else:
        stored = choose(before > 0, smaller(prompt + before, kind.window), prompt)
    return DecodeStep(
        seq=1,
        past=past,
        stored=stored,
        left=past + 1,
        reordered=_visible(kind, prompt + number),
        number=number,
        masked=kind.window is not None and slides(1 + past, kind.window),
    )


def _static_length(kind: LayerKind, mode: CacheMode) -> Num:
    """Tokens of a layer's static cache (StaticSlidingWindowLayer)."""
    assert mode.room is not None
    return mode.room if kind.window is None else smaller(mode.room, kind.window)


def _static_prompt(kind: LayerKind, prompt: Num, mode: CacheMode) -> DecodeStep:
    """The prompt's pass with a static cache. SDPA without a mask reads the prompt's tokens only
    (integrations/sdpa_attention.py:142); with one, and in eager attention, the whole cache is
    read. A prompt longer than a window reads its own keys (cache_utils.py
    StaticSlidingWindowLayer.update).
    """
    length = _static_length(kind, mode)
    over = kind.window is not None and same_for_all(prompt > length)
    width = prompt if over else length
    masked = same_for_all(prompt == 1) or (kind.window is not None and slides(width, kind.window))
    keys = width if masked or mode.whole else prompt
    return DecodeStep(
        seq=prompt,
        past=keys - prompt,
        left=length,
        reordered=length,
        masked=masked,
        capacity=length,
        over=over,
    )


def _static_step(kind: LayerKind, prompt: Num, number: Num, mode: CacheMode) -> DecodeStep:
    """A decoding step that reads all of a static cache, with a mask (masking_utils.py:921)."""
    length = _static_length(kind, mode)
    rolls = kind.window is not None and same_for_all(prompt + number > length)
    return DecodeStep(
        seq=1,
        past=length - 1,
        stored=length,
        left=length,
        reordered=length,
        number=number,
        masked=True,
        capacity=length,
        rolls=rolls,
    )
