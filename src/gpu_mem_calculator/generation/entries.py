"""What a generation holds: weights, caches, the layer or head at work, the choice of a token.

The same case gives both readings: entries of a ledger at its highest instants, or, unrolled, what
each layer and the head make and free, pass after pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..autograd.forward import ForwardPass
from ..autograd.peak import PeakParts
from ..ledger.ledger import ACT, CACHE, TEMP, Entry
from ..ledger.num import Num, nothing
from ..ledger.source import Source, code
from ..modelling.huggingface.setting import BlockSetting
from ..run.run import Run
from ..step.block_events import HEAD
from .decode_steps import FIRST, LAST, PROMPT, CacheMode, DecodeStep, LayerKind
from .inference_layer import (
    InferenceLayer,
    cached_parts,
    layer_pass,
    logits_pass,
    norm_pass,
    reorder_pass,
)
from .instants import REORDER, GenerationInstant
from .model_inputs import GENERATE_CODE, goes_in, plain
from .stream import SCORES, PassEvents
from .token_choice import TokenChoice, choose_token, named

LAYER_CODE = code("transformers 5.17.0 modeling code, walked without a graph")
CACHE_CODE = code("transformers 5.17.0 cache_utils.py DynamicLayer.update: joined by torch.cat")
STATIC_CODE = code("transformers 5.17.0 cache_utils.py StaticLayer.lazy_initialization")
REORDER_CODE = code("transformers 5.17.0 cache_utils.py CacheLayerMixin.reorder_cache")


class GenerationCase(Struct, frozen=True, kw_only=True, dict=True):
    """One model's part in a generation: how it runs, its kinds of layers, each one's passes, the
    instants, and how a token is chosen.
    """

    run: Run
    how: BlockSetting
    manner: CacheMode
    found: tuple[LayerKind, ...]
    passes: list[dict[str, DecodeStep]]
    table: tuple[GenerationInstant, ...]
    choice: TokenChoice

    def step(self, beat: GenerationInstant) -> DecodeStep:
        """A beat's pass, as its layer sees it."""
        return self.passes[max(beat.kind, 0)][beat.step]

    def at(self, step: DecodeStep) -> BlockSetting:
        """The setting of one pass."""
        one = type(step.seq) is int and step.seq == 1 and step.stored is not None
        return replace(self.how, seq=step.seq, past=step.past, decoding=one)


def caches(case: GenerationCase) -> Iterator[Entry]:
    """Keys and values of the layers that are not at work: behind the prompt, and in the steps."""
    source = CACHE_CODE if case.manner.room is None else STATIC_CODE
    for kind, each in zip(case.found, case.passes, strict=True):
        for when, tokens, counts in _rows(case, kind, each):
            parts = cached_bytes(case, kind, tokens)
            total: Num = 0
            for _, size in parts:
                total = total + size
            if not nothing(total) and any(counts.values()):
                yield Entry(name=f"{kind.title}: cache {when}", kind=CACHE, bytes=total,
                            live=counts, source=source, parts=parts)  # fmt: skip


def cached_bytes(case: GenerationCase, kind: LayerKind, tokens: Num) -> tuple[tuple[str, Num], ...]:
    """What one layer of a kind caches for so many tokens a sequence."""
    parts = cached_parts(case.how, kind.layer, tokens)
    return tuple((name, elements * bits // 8) for name, elements, bits in parts)


def _rows(
    case: GenerationCase, kind: LayerKind, each: dict[str, DecodeStep]
) -> Iterator[tuple[str, Num, dict[str, Num]]]:
    """What a kind's layers hold when another works: when, tokens, and how many layers where."""
    titles = {PROMPT: "prompt", FIRST: "first step", LAST: "last step"}
    for name, step in each.items():
        here = [b for b in case.table if b.step == name]
        passing = [b for b in here if b.work != REORDER]
        picking = [b for b in here if b.work == REORDER]
        behind: dict[str, Num] = {b.name: b.done(kind) for b in passing}
        behind |= {b.name: b.waiting(kind) for b in picking}
        yield f"behind the {titles[name]}", step.left, behind
        if step.stored is not None:
            before: dict[str, Num] = {b.name: b.waiting(kind) for b in passing}
            yield f"before the {titles[name]}", step.stored, before
        picked: dict[str, Num] = {b.name: b.done(kind) for b in picking}
        yield f"of picked beams, {titles[name]}", step.reordered, picked


def walked(case: GenerationCase) -> dict[tuple[int, str, str], InferenceLayer]:
    """Each kind of layer in each pass, and the copying of its cache."""
    done: dict[tuple[int, str, str], InferenceLayer] = {}
    for beat in case.table:
        key = (beat.kind, beat.step, beat.work)
        if beat.work in ("layer", REORDER) and key not in done:
            kind, step = case.found[beat.kind], case.step(beat)
            how = case.at(step)
            if beat.work == "layer":
                done[key] = layer_pass(how, kind.layer, step, slides=kind.window is not None)
            else:
                done[key] = reorder_pass(how, kind.layer, step)
    return done


def layers(case: GenerationCase) -> Iterator[Entry]:
    """The layer at work, its own cache before and after included."""
    done = walked(case)
    for beat in case.table:
        if beat.work in ("layer", REORDER):
            moment, title = (
                done[beat.kind, beat.step, beat.work].moment,
                case.found[beat.kind].title,
            )
            if beat.work == "layer":
                yield from working(f"{title}: at work", moment, beat)
            else:
                yield from working(f"{title}: cache copied", moment, beat, REORDER_CODE, CACHE)


def working(
    name: str,
    moment: PeakParts,
    beat: GenerationInstant,
    source: Source = LAYER_CODE,
    what: str = ACT,
) -> Iterator[Entry]:
    """What is at work at a beat, and its workspace."""
    parts = ((name, what, moment.act), (f"{name}, kernel workspace", TEMP, moment.temp))
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=kind, bytes=size, live={beat.name: 1}, source=source)


def behind(case: GenerationCase, beat: GenerationInstant) -> ForwardPass:
    """The final norm, or the logits: of the last token, but in a plain forward of all."""
    run, step = case.run, case.passes[0][beat.step]
    here = case.at(step)
    if beat.work == "norm":
        return norm_pass(here, run.arch)
    return logits_pass(here, run.arch, here.seq if plain(run) else step.logits)


def head(case: GenerationCase) -> Iterator[Entry]:
    """The final norm, the logits, and what the next token is chosen from, which generate names
    until the next choice has its own.
    """
    titles = {"norm": "final norm", "logits": "logits"}
    for beat in case.table:
        if beat.work in titles:
            yield from working(titles[beat.work], behind(case, beat).moment, beat)
        elif beat.work == "scores":
            moment = choose_token(case.choice, first=beat.step == PROMPT).moment
            yield from working("choice of a token", moment, beat, GENERATE_CODE)
    later: dict[str, Num] = {
        b.name: 1 for b in case.table
        if b.work == REORDER or (b.step != PROMPT and b.work != "scores")
    }  # fmt: skip
    parts = tuple((name, size * bits // 8) for name, size, bits in named(case.choice))
    total: Num = 0
    for _, size in parts:
        total = total + size
    yield Entry(name="what the token before was chosen from", kind=ACT, bytes=total, live=later,
                source=GENERATE_CODE, parts=parts)  # fmt: skip


def turns(case: GenerationCase) -> dict[str, PassEvents]:
    """What each layer and the head make and free, pass after pass."""
    done, made = walked(case), {}
    for beat in (b for b in case.table if b.instant.present):
        if beat.work in ("layer", REORDER):
            turn = done[beat.kind, beat.step, beat.work]
            made[beat.name] = PassEvents(
                block=beat.place, script=turn.script, forward=True, given=turn.given,
                kept=turn.kept, named=turn.named,
                embedded=beat.work == "layer" and beat.place == 0 and goes_in(case.run),
            )  # fmt: skip
        elif beat.work == "scores":
            one = choose_token(case.choice, first=beat.step == PROMPT)
            made[beat.name] = PassEvents(
                block=SCORES,
                script=one.script,
                forward=True,
                given=one.given,
                kept=(one.script.exit, *one.kept),
            )
        else:
            made[beat.name] = PassEvents(block=HEAD, script=behind(case, beat).script, forward=True)
    return made
