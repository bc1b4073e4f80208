"""The named instants of a generation: the prompt in one pass, then one token at a time.

In the prompt's pass the cache grows layer by layer; in a decoding step each layer's cache is
made anew, one token longer, and the old one goes. So the highest instants are the last layer of
each kind and the logits; where windows slide, also the first step, which lets the prompt go.
Unrolled, every layer has an instant in every pass that is played.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from ..ledger.ledger import Instant
from ..ledger.num import Num, choose, holds, smaller
from ..model.arch import Arch, Layer
from . import stack

PREFILL, DECODE = "prefill", "decode"
MASKS, TABLES = "masks", "tables"  # made before the first layer runs
STEPS, ENDS = 32, 2  # decoding steps that are played, and how many of them at each end
PROMPT, FIRST, LAST = "prefill", "decode.first", "decode"  # which pass a beat belongs to


class Kind(Struct, frozen=True, kw_only=True):
    """Equal layers with equal windows, wherever they stand in the stack."""

    layer: Layer
    window: int | None
    title: str
    places: tuple[int, ...]


class Step(Struct, frozen=True, kw_only=True):
    """One pass, as one kind of layer sees it: tokens a sequence.

    `seq` are new, `past` are read from the cache, `stored` has memory before it (None: empty).
    `number` is how many tokens have been chosen before.
    """

    seq: Num
    past: Num = 0
    stored: Num = None
    number: Num = 0


class Beat(Struct, frozen=True, kw_only=True):
    """An instant, its pass, and what is at work: MASKS or TABLES, "layer" (of a kind), "norm",
    "logits" or "scores". `place` is the layer's in the stack, -1 before it, its length behind it.
    """

    instant: Instant
    step: str
    work: str
    kind: int = -1
    place: int = -1

    @property
    def name(self) -> str:
        """The instant's name."""
        return self.instant.name

    def done(self, kind: Kind) -> int:
        """Layers of a kind that have run in this pass."""
        return sum(place < self.place for place in kind.places)

    def waiting(self, kind: Kind) -> int:
        """Layers of a kind that have not run yet."""
        return sum(place > self.place for place in kind.places)


def kinds(arch: Arch, *, windows: bool = True) -> tuple[Kind, ...]:
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
        Kind(layer=layer, window=window, places=tuple(places),
             title=f"{layer.kind} layers" if window is None else f"windowed {layer.kind} layers")
        for layer, window, places in found
    )  # fmt: skip


def steps(kind: Kind, prompt: Num, new_tokens: Num) -> dict[str, Step]:
    """The passes: the prompt, the first decoding step, and the last one.

    The prompt's pass gives the first token, so new_tokens - 1 steps follow.
    """
    return {
        PROMPT: Step(seq=prompt),
        FIRST: _step(kind, prompt, 1, 0),
        LAST: _step(kind, prompt, new_tokens - 1, new_tokens - 2),
    }


def every_step(kind: Kind, prompt: int, new_tokens: int) -> dict[str, Step]:
    """The passes that are played, each with the cache that the one before has left."""
    numbers = played(new_tokens)
    found = {PROMPT: Step(seq=prompt)}
    for before, number in pairwise((0, *numbers)):
        found[f"{LAST}.{number}"] = _step(kind, prompt, number, before)
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


def _step(kind: Kind, prompt: Num, number: Num, before: Num) -> Step:
    """A decoding step behind another one (0: the prompt).

    A window's cache is a view of `window - 1` tokens; behind a step there is memory for `window`,
    behind the prompt for all of it (transformers 5.17.0 cache_utils.py
    DynamicSlidingWindowLayer.update).
    """
    past = prompt + number - 1
    if kind.window is None:
        return Step(seq=1, past=past, stored=prompt + before, number=number)
    stored = choose(before > 0, smaller(prompt + before, kind.window), prompt)
    return Step(seq=1, past=smaller(past, kind.window - 1), stored=stored, number=number)


def slides(step: Step, window: int | None) -> bool:
    """Whether a window makes a mask in a step."""
    return window is not None and stack.slides(step.seq + step.past, window)


def beats(found: tuple[Kind, ...], new_tokens: Num, first: Iterable[str]) -> tuple[Beat, ...]:
    """The instants of a generation in order; a plain forward (no new token) ends with logits.

    `first`: what the prompt's pass makes before its layers run.
    """
    some = [i for i, kind in enumerate(found) if kind.window is not None]
    titles = {MASKS: "attention masks", TABLES: "rotary tables"}
    made = [_beat(PROMPT, PREFILL, work, f"prefill, {titles[work]}", 1, work) for work in first]
    made += _pass(found, PROMPT, PREFILL, "prefill", 1, holds(new_tokens > 0))
    if some:
        more = holds(new_tokens > 2)
        for i, kind in enumerate(found):
            for place in sorted({kind.places[0], kind.places[-1]}):
                title = f"decode, first token: {_where(found, kind)}"
                made.append(_beat(FIRST, DECODE, f"layer.{place}", title, more, "layer", i, place))
    again = holds(new_tokens > 1)
    return (*made, *_pass(found, LAST, DECODE, "decode", again, again))


def every_beat(found: tuple[Kind, ...], new_tokens: int) -> tuple[Beat, ...]:
    """The same with each layer by itself, in every pass that is played."""
    order = sorted((place, i) for i, kind in enumerate(found) for place in kind.places)
    made = _layer_beats(found, PROMPT, PREFILL, "prefill", order, new_tokens > 0)
    for number in played(new_tokens):
        made += _layer_beats(found, f"{LAST}.{number}", DECODE, "decode", order, True)
    return tuple(made)


def _layer_beats(
    found: tuple[Kind, ...], step: str, phase: str, title: str, order: list[tuple[int, int]],
    scores: bool,
) -> list[Beat]:  # fmt: skip
    layers = [_beat(step, phase, f"layer.{place}", title, 1, "layer", i, place)
              for place, i in order]  # fmt: skip
    return [*layers, *_end(found, step, phase, title, 1, int(scores))]


def _pass(
    found: tuple[Kind, ...], step: str, phase: str, title: str, present: Num, scores: Num
) -> list[Beat]:
    """One forward pass through the whole model."""
    order = sorted(range(len(found)), key=lambda i: found[i].places[-1])
    made = [
        _beat(step, phase, f"layer.{i}", f"{title}, {_where(found, found[i])}", present,
              "layer", i, found[i].places[-1])
        for i in order
    ]  # fmt: skip
    return [*made, *_end(found, step, phase, title, present, scores)]


def _end(
    found: tuple[Kind, ...], step: str, phase: str, title: str, present: Num, scores: Num
) -> list[Beat]:
    """What follows the stack."""
    length = sum(len(kind.places) for kind in found)
    rows = (("norm", "final norm", present), ("logits", "logits", present),
            ("scores", "next token", scores))  # fmt: skip
    return [_beat(step, phase, work, f"{title}, {what}", there, work, place=length)
            for work, what, there in rows]  # fmt: skip


def _where(found: tuple[Kind, ...], kind: Kind) -> str:
    """`last layer`, or which kind of layer where there are several."""
    return "last layer" if len(found) == 1 else kind.title


def _beat(
    step: str, phase: str, name: str, title: str, present: Num, work: str, kind: int = -1,
    place: int = -1,
) -> Beat:  # fmt: skip
    instant = Instant(name=f"{step}.{name}", phase=phase, title=title, present=present)
    return Beat(instant=instant, step=step, work=work, kind=kind, place=place)
