"""The named instants of a generation: the prompt in one pass, then one token at a time.

In the prompt's pass the cache grows layer by layer; in a decoding step each layer's cache is
made anew, one token longer, and the old one goes. So the highest instants are the last layer of
each kind and the logits; where windows slide, also the first step, which lets the prompt go.
Beams add the copying of every layer's cache, one after another, behind the choice of a token.
Unrolled, every layer has an instant in every pass that is played.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ..ledger.ledger import Instant
from ..ledger.num import Num, holds
from .decode_steps import FIRST, LAST, PROMPT, LayerKind, played

PREFILL, DECODE = "prefill", "decode"
MASKS, TABLES = "masks", "tables"  # made before the first layer runs
REORDER = "reorder"  # a layer's cache is copied for the beams that go on


class GenerationInstant(Struct, frozen=True, kw_only=True):
    """An instant, its pass, and what is at work: MASKS or TABLES, "layer" (of a kind), "norm",
    "logits", "scores" or REORDER. `place` is the layer's in the stack, -1 before it, its length
    behind it.
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

    def done(self, kind: LayerKind) -> int:
        """Layers of a kind that have run in this pass."""
        return sum(place < self.place for place in kind.places)

    def waiting(self, kind: LayerKind) -> int:
        """Layers of a kind that have not run yet."""
        return sum(place > self.place for place in kind.places)


def beats(
    found: tuple[LayerKind, ...], new_tokens: Num, first: Iterable[str], *, beams: bool = False
) -> tuple[GenerationInstant, ...]:
    """The instants of a generation in order; a plain forward (no new token) ends with logits.

    `first`: what the prompt's pass makes before its layers run. `beams`: caches are reordered.
    """
    some = [i for i, kind in enumerate(found) if kind.window is not None]
    made = before_layers(PROMPT, "prefill", first)
    made += one_pass(found, PROMPT, PREFILL, "prefill", 1, holds(new_tokens > 0))
    if beams:
        made += _reorders(found, PROMPT, PREFILL, "prefill", 1)
    if some:
        more = holds(new_tokens > 2)
        for i, kind in enumerate(found):
            for place in sorted({kind.places[0], kind.places[-1]}):
                title = f"decode, first token: {_where(found, kind)}"
                made.append(beat(FIRST, DECODE, f"layer.{place}", title, more, "layer", i, place))
    again = holds(new_tokens > 1)
    made += one_pass(found, LAST, DECODE, "decode", again, again)
    return (*made, *(_reorders(found, LAST, DECODE, "decode", again) if beams else ()))


def before_layers(step: str, title: str, first: Iterable[str]) -> list[GenerationInstant]:
    """What a pass over the prompt makes before its layers run."""
    titles = {MASKS: "attention masks", TABLES: "rotary tables"}
    return [beat(step, PREFILL, work, f"{title}, {titles[work]}", 1, work) for work in first]


def every_beat(
    found: tuple[LayerKind, ...], new_tokens: int, *, beams: bool = False
) -> tuple[GenerationInstant, ...]:
    """The same with each layer by itself, in every pass that is played."""
    made = every_layer(found, PROMPT, PREFILL, "prefill", new_tokens > 0, beams)
    for number in played(new_tokens):
        made += every_layer(found, f"{LAST}.{number}", DECODE, "decode", True, beams)
    return tuple(made)


def every_layer(
    found: tuple[LayerKind, ...], step: str, phase: str, title: str, scores: bool = True,
    beams: bool = False,
) -> list[GenerationInstant]:  # fmt: skip
    """One forward pass, layer by layer."""
    order = sorted((place, i) for i, kind in enumerate(found) for place in kind.places)

    def layers(work: str) -> list[GenerationInstant]:
        return [beat(step, phase, f"{work}.{place}", title, 1, work, i, place)
                for place, i in order]  # fmt: skip

    end = _end(found, step, phase, title, 1, int(scores))
    return [*layers("layer"), *end, *(layers(REORDER) if beams else ())]


def _reorders(
    found: tuple[LayerKind, ...], step: str, phase: str, title: str, present: Num
) -> Iterable[GenerationInstant]:
    """A cache is copied, one layer after another: the first and the last of each kind."""
    for i, kind in enumerate(found):
        for place in sorted({kind.places[0], kind.places[-1]}):
            yield beat(step, phase, f"{REORDER}.{place}", f"{title}, beams picked", present,
                        REORDER, i, place)  # fmt: skip


def one_pass(
    found: tuple[LayerKind, ...],
    step: str,
    phase: str,
    title: str,
    present: Num = 1,
    scores: Num = 1,
) -> list[GenerationInstant]:
    """One forward pass through the whole model: the last layer of each kind."""
    order = sorted(range(len(found)), key=lambda i: found[i].places[-1])
    made = [
        beat(step, phase, f"layer.{i}", f"{title}, {_where(found, found[i])}", present,
              "layer", i, found[i].places[-1])
        for i in order
    ]  # fmt: skip
    return [*made, *_end(found, step, phase, title, present, scores)]


def _end(
    found: tuple[LayerKind, ...], step: str, phase: str, title: str, present: Num, scores: Num
) -> list[GenerationInstant]:
    """What follows the stack."""
    length = sum(len(kind.places) for kind in found)
    rows = (("norm", "final norm", present), ("logits", "logits", present),
            ("scores", "next token", scores))  # fmt: skip
    return [beat(step, phase, work, f"{title}, {what}", there, work, place=length)
            for work, what, there in rows]  # fmt: skip


def _where(found: tuple[LayerKind, ...], kind: LayerKind) -> str:
    """`last layer`, or which kind of layer where there are several."""
    return "last layer" if len(found) == 1 else kind.title


def beat(
    step: str, phase: str, name: str, title: str, present: Num, work: str, kind: int = -1,
    place: int = -1,
) -> GenerationInstant:  # fmt: skip
    """An instant of a pass."""
    instant = Instant(name=f"{step}.{name}", phase=phase, title=title, present=present)
    return GenerationInstant(instant=instant, step=step, work=work, kind=kind, place=place)
