"""The named instants of a generation: the prompt in one pass, then one pass for each token.

In the prompt's pass the cache grows layer by layer; in a decoding step each layer allocates its
cache again, one token longer, and frees the old one. So memory is highest at the last layer of each
kind or at the logits; where windows slide, also in the first step, which frees the prompt's cache.
With beams every layer's cache is copied after a token is chosen, layer by layer. Unrolled, every
layer has an instant in every pass that is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ...ledger.ledger import Instant
from ...ledger.num import Num, holds
from ...run.phases import DECODE as DECODE
from ...run.phases import PREFILL as PREFILL
from .decode_steps import FIRST, LAST, PROMPT, LayerKind, LayerKinds, replayed_steps

MASKS, TABLES = "masks", "tables"  # made before the first layer runs
STACK = "stack"  # the scores of an assistant's candidates are joined into one tensor
REORDER = "reorder"  # a layer's cache is copied for the beams that continue


class GenerationInstant(Struct, frozen=True, kw_only=True):
    """An instant of a pass.

    - `step`: the name of the pass.
    - `work`: what runs: MASKS, TABLES, "layer", "norm", "logits", "scores" or REORDER.
    - `kind`: the index of the layer's kind, -1 where no layer runs.
    - `place`: the layer's index in the stack, -1 before the stack, its length after it.
    """

    instant: Instant
    step: str
    work: str
    kind: int = -1
    place: int = -1

    @property
    def name(self) -> str:
        """The name of the instant, by which entries say when they are alive."""
        return self.instant.name

    def layers_before(self, kind: LayerKind) -> int:
        """How many layers of a kind have run in this pass."""
        return sum(place < self.place for place in kind.places)

    def layers_after(self, kind: LayerKind) -> int:
        """How many layers of a kind have not run yet in this pass."""
        return sum(place > self.place for place in kind.places)


GenerationInstants = tuple[GenerationInstant, ...]


def generation_instants(
    kinds: LayerKinds, new_tokens: Num, first: Iterable[str], *, beams: bool = False
) -> GenerationInstants:
    """The instants of a generation in order; a plain forward (no new token) ends with logits.

    `first`: what the prompt's pass makes before its layers run. `beams`: caches are reordered.
    """
    instants = before_layers(PROMPT, "prefill", first)
    instants += one_pass(kinds, PROMPT, PREFILL, "prefill", 1, holds(new_tokens > 0))
    if beams:
        instants += _reorders(kinds, PROMPT, PREFILL, "prefill", 1)
    if any(kind.window is not None for kind in kinds):
        several = holds(new_tokens > 2)
        for i, kind in enumerate(kinds):
            title = f"decode, first token: {_layer_title(kinds, kind)}"
            for place in sorted({kind.places[0], kind.places[-1]}):
                name = f"layer.{place}"
                instants.append(new_instant(FIRST, DECODE, name, title, several, "layer", i, place))
    decodes = holds(new_tokens > 1)
    instants += one_pass(kinds, LAST, DECODE, "decode", decodes, decodes)
    return (*instants, *(_reorders(kinds, LAST, DECODE, "decode", decodes) if beams else ()))


def before_layers(step: str, title: str, first: Iterable[str]) -> list[GenerationInstant]:
    """The instants of a prompt's pass before its layers run; `first`: MASKS, TABLES."""
    titles = {MASKS: "attention masks", TABLES: "rotary tables"}
    return [new_instant(step, PREFILL, work, f"{title}, {titles[work]}", 1, work) for work in first]


def unrolled_instants(
    kinds: LayerKinds, new_tokens: int, *, beams: bool = False
) -> GenerationInstants:
    """The instants of an unrolled generation: each layer, in every pass that is replayed."""
    instants = every_layer(kinds, PROMPT, PREFILL, "prefill", new_tokens > 0, beams)
    for number in replayed_steps(new_tokens):
        instants += every_layer(kinds, f"{LAST}.{number}", DECODE, "decode", True, beams)
    return tuple(instants)


def every_layer(
    kinds: LayerKinds, step: str, phase: str, title: str, scores: bool = True, beams: bool = False
) -> list[GenerationInstant]:
    """The instants of one forward pass, one for each layer."""
    order = sorted((place, i) for i, kind in enumerate(kinds) for place in kind.places)

    def layers(work: str) -> list[GenerationInstant]:
        return [
            new_instant(step, phase, f"{work}.{place}", title, 1, work, i, place)
            for place, i in order
        ]

    end = _after_layers(kinds, step, phase, title, 1, int(scores))
    return [*layers("layer"), *end, *(layers(REORDER) if beams else ())]


def _reorders(
    kinds: LayerKinds, step: str, phase: str, title: str, present: Num
) -> Iterable[GenerationInstant]:
    """The instants at which a cache is copied: the first and the last layer of each kind."""
    for i, kind in enumerate(kinds):
        for place in sorted({kind.places[0], kind.places[-1]}):
            name, words = f"{REORDER}.{place}", f"{title}, beams picked"
            yield new_instant(step, phase, name, words, present, REORDER, i, place)


def one_pass(
    kinds: LayerKinds, step: str, phase: str, title: str, present: Num = 1, scores: Num = 1
) -> list[GenerationInstant]:
    """The instants of one forward pass: the last layer of each kind, norm, logits, scores."""
    order = sorted(range(len(kinds)), key=lambda i: kinds[i].places[-1])
    layers = []
    for i in order:
        name, words, last = f"layer.{i}", _layer_title(kinds, kinds[i]), kinds[i].places[-1]
        words = f"{title}, {words}"
        layers.append(new_instant(step, phase, name, words, present, "layer", i, last))
    return [*layers, *_after_layers(kinds, step, phase, title, present, scores)]


def _after_layers(
    kinds: LayerKinds, step: str, phase: str, title: str, present: Num, scores: Num
) -> list[GenerationInstant]:
    """The instants after the layers: final norm, logits, and the choice of a token."""
    length = sum(len(kind.places) for kind in kinds)
    rows = (
        ("norm", "final norm", present),
        ("logits", "logits", present),
        ("scores", "next token", scores),
    )
    return [
        new_instant(step, phase, work, f"{title}, {words}", exists, work, place=length)
        for work, words, exists in rows
    ]


def _layer_title(kinds: LayerKinds, kind: LayerKind) -> str:
    """`last layer`, or the kind's title where there are several kinds."""
    return "last layer" if len(kinds) == 1 else kind.title


def new_instant(
    step: str,
    phase: str,
    name: str,
    title: str,
    present: Num,
    work: str,
    kind: int = -1,
    place: int = -1,
) -> GenerationInstant:
    """An instant of the pass `step`, which has its name from the pass and from `name`."""
    instant = Instant(name=f"{step}.{name}", phase=phase, title=title, present=present)
    return GenerationInstant(instant=instant, step=step, work=work, kind=kind, place=place)
