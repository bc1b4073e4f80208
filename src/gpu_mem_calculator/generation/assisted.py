"""Assisted generation: a small model proposes tokens, and the large one checks them in one pass.

transformers 5.17.0 generation/utils.py _assisted_decoding, candidate_generator.py. Whether a
candidate is accepted lies in the data; none is here, so that every token takes a round. The
caches come to the same length either way.

Legend: s tokens of the prompt, n new tokens, k candidates of a round, v the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from ..autograd.events import BlockEvents
from ..ledger.ledger import ACT, CACHE, Entry
from ..ledger.num import Num, nothing, smaller
from ..ledger.source import code
from ..run.run import Run
from ..step.block_events import HEAD
from .decode_steps import DecodeStep, LayerKind
from .entries import CACHE_CODE, GenerationCase, behind, cached_bytes, layers, walked, working
from .instants import DECODE, PREFILL, GenerationInstant, beat, before_layers, every_layer, one_pass
from .model_inputs import first_beats, goes_in
from .stream import SCORES, PassEvents
from .token_choice import TokenChoice, choose_token, named

ASSISTED_CODE = code("transformers 5.17.0 generation/utils.py _assisted_decoding")
CANDIDATES_CODE = code("transformers 5.17.0 generation/candidate_generator.py _generate_candidates")
STACK = "stack"  # the candidates' scores are joined
OFFSET = 100_000  # of the small model's layers among the blocks
IDS = 9  # of every token: ids, masks and positions of both models, and copies of them
GONE = BlockEvents(sizes=(0,), entry=0, exit=-1, forward=(~0,))  # logits that have been read


class AssistedRound(Struct, frozen=True, kw_only=True):
    """One round: `tokens` there are before it, `count` candidates are proposed in it."""

    number: int
    tokens: Num
    count: Num
    before: Num  # candidates of the round before

    @property
    def phase(self) -> str:
        """The prompt belongs to the first."""
        return DECODE if self.number else PREFILL


def rounds(run: Run, wanted: int) -> list[AssistedRound]:
    """The rounds that can be the highest: the first two, the last with all its candidates, the
    last; unrolled, those before them, too.
    """
    last = int(run.new_tokens) - 1
    picked = {0, 1, last - wanted, last}
    if run.unrolled:
        picked |= {number - 1 for number in picked}
    left = run.new_tokens - 1
    return [
        AssistedRound(number=number, tokens=run.seq + number, count=smaller(wanted, left - number),
              before=smaller(wanted, left - number + 1))
        for number in sorted(picked) if 0 <= number <= last
    ]  # fmt: skip


def draft_steps(every: list[AssistedRound], unrolled: bool) -> dict[str, DecodeStep]:
    """The small model's passes: the prompt, later the last two tokens; then one by one."""
    made: dict[str, DecodeStep] = {}
    for one in every:
        length, count = one.tokens, int(one.count)
        left = length + one.before - 2  # behind the round before, which began a token earlier
        for i in range(count) if unrolled else sorted({0, count - 1} if count else ()):
            if i:
                step = DecodeStep(
                    seq=1, past=length + i - 1, stored=length + i - 1, left=length + i
                )
            elif one.number:
                step = DecodeStep(seq=2, past=length - 2, stored=left, left=length, masked=True)
            else:
                step = DecodeStep(seq=length, left=length)
            made[f"draft.{one.number}.{i}"] = step
    return made


def main_steps(every: list[AssistedRound]) -> dict[str, DecodeStep]:
    """The large model's passes: the prompt with the first candidates, then candidates alone."""
    made: dict[str, DecodeStep] = {}
    for one in every:
        length, count = one.tokens, one.count
        if not one.number:
            step = DecodeStep(seq=length + count, left=length + count, logits=count + 1)
        else:
            seq = 1 if int(count) == 0 else count + 1
            step = DecodeStep(seq=seq, past=length - 1, stored=length - 1 + one.before,
                        left=length + count, masked=int(count) > 0, logits=seq)  # fmt: skip
        made[f"main.{one.number}"] = step
    return made


def draft_beats(case: GenerationCase, every: list[AssistedRound]) -> Iterator[GenerationInstant]:
    """Instants of the small model."""
    for one in every:
        for i in range(int(one.count)):
            name = f"draft.{one.number}.{i}"
            step = case.passes[0].get(name)
            if step is not None:
                yield from _beats(case, name, step, one.phase, "candidates")
        if int(one.count):
            yield beat(name, one.phase, STACK, "candidates, their scores", 1, STACK)


def main_beats(case: GenerationCase, every: list[AssistedRound]) -> Iterator[GenerationInstant]:
    """Instants of the large one."""
    for one, (name, step) in zip(every, case.passes[0].items(), strict=True):
        yield from _beats(case, name, step, one.phase, "check" if one.number else "prefill")


def _beats(
    case: GenerationCase, name: str, step: DecodeStep, phase: str, title: str
) -> Iterator[GenerationInstant]:
    if case.run.unrolled:
        yield from every_layer(case.found, name, phase, title)
        return
    if step.stored is None:
        first = first_beats(case.run, case.how, case.found, [each[name] for each in case.passes])
        yield from before_layers(name, title, first)
    yield from one_pass(case.found, name, phase, title)


def in_order(
    draft: Iterable[GenerationInstant], main: Iterable[GenerationInstant]
) -> list[GenerationInstant]:
    """Round by round, the small model first."""
    both = chain(draft, main)
    return sorted(both, key=lambda b: (int(b.step.split(".")[1]), b.step.startswith("main")))


class AssistedModels(Struct, frozen=True, kw_only=True):
    """Both models of an assisted generation, and its rounds."""

    draft: GenerationCase
    main: GenerationCase
    every: list[AssistedRound]

    def at(self, beat: GenerationInstant) -> AssistedRound:
        """The round of an instant."""
        number = int(beat.step.split(".")[1])
        return next(one for one in self.every if one.number == number)

    def choice(self, one: AssistedRound) -> TokenChoice:
        """What the large model checks in a round."""
        return replace(self.main.choice, rows=one.count + 1, before=one.before + 1)


def entries(pair: AssistedModels) -> Iterator[Entry]:
    """What is neither weights nor made for a pass, at the instants of a rolled ledger."""
    for case, other in ((pair.draft, pair.main), (pair.main, pair.draft)):
        yield from layers(case)
        yield from _own(case)
        yield from _others(pair, case, other)
        for one in case.table:
            if one.work in ("norm", "logits"):
                title = "final norm" if one.work == "norm" else "logits"
                yield from working(title, behind(case, one).moment, one)
    for one in pair.draft.table:
        if one.work == "scores":
            size = pair.draft.choice.logits * pair.draft.how.bits // 8
            yield Entry(name="logits", kind=ACT, bytes=size, live={one.name: 1},
                        source=CANDIDATES_CODE)  # fmt: skip
    for one in pair.main.table:
        if one.work == "scores":
            here = pair.at(one)
            moment = choose_token(pair.choice(here), first=not here.number).moment
            yield from working("candidates checked", moment, one, ASSISTED_CODE)
    yield from _named(pair)


def shared(pair: AssistedModels) -> Iterator[Entry]:
    """What comes and goes with the instants in both readings: ids, and the candidates' scores."""
    wide = 4 * pair.draft.choice.logits
    table = pair.draft.table
    alive: dict[str, Num] = {
        b.name: int(b.step.split(".")[2]) + (b.work in ("scores", STACK)) for b in table
    }
    yield Entry(name="scores of the candidates", kind=ACT, bytes=wide, live=alive,
                source=CANDIDATES_CODE)  # fmt: skip
    for one in pair.every:
        here = [b for b in table if pair.at(b) is one]
        checked = [b for b in pair.main.table if pair.at(b) is one]
        joined = [b for b in here if b.work == STACK]
        rows = ((one.count, [*joined, *checked]), (one.before, here if one.number else []))
        for count, where in rows:
            yield Entry(name="candidate logits", kind=ACT, bytes=wide * count,
                        live={b.name: 1 for b in where}, source=ASSISTED_CODE)  # fmt: skip
        yield Entry(name="token ids, masks and positions", kind=ACT,
                    bytes=8 * IDS * (one.tokens + one.count), source=ASSISTED_CODE,
                    live={b.name: 1 for b in (*here, *checked)})  # fmt: skip


def _own(case: GenerationCase) -> Iterator[Entry]:
    """Caches of the layers that are not at work, before and behind a pass."""
    for kind, each in zip(case.found, case.passes, strict=True):
        for name, step in each.items():
            here = [b for b in case.table if b.step == name]
            rows = [(step.left, {b.name: b.done(kind) for b in here if b.work != STACK})]
            rows.append((step.left, {b.name: len(kind.places) for b in here if b.work == STACK}))
            if step.stored is not None:
                rows.append((step.stored, {b.name: b.waiting(kind) for b in here
                                           if b.work != STACK}))  # fmt: skip
            for tokens, live in rows:
                yield _cache(case, kind, tokens, live)


def _others(pair: AssistedModels, case: GenerationCase, other: GenerationCase) -> Iterator[Entry]:
    """The cache of the model that waits."""
    for one in pair.every:
        here: dict[str, Num] = {b.name: 1 for b in case.table if pair.at(b) is one}
        if other is pair.main:
            tokens = one.tokens - 1 + one.before if one.number else 0
        else:
            tokens = one.tokens + one.count - 1
            if int(one.count) == 0:
                tokens = one.tokens + one.before - 2 if one.number else 0
        for kind in other.found:
            yield _cache(other, kind, tokens, {k: len(kind.places) for k in here})


def _cache(case: GenerationCase, kind: LayerKind, tokens: Num, live: dict[str, Num]) -> Entry:
    parts = cached_bytes(case, kind, tokens)
    total: Num = 0
    for _, size in parts:
        total = total + size
    return Entry(name=f"{kind.title}: cache", kind=CACHE, bytes=0 if nothing(tokens) else total,
                 live=live, source=CACHE_CODE)  # fmt: skip


def _named(pair: AssistedModels) -> Iterator[Entry]:
    """What the large model's last check still names."""
    for one in pair.every:
        if not one.number:
            continue
        live: dict[str, Num] = {
            b.name: 1 for b in (*pair.draft.table, *pair.main.table)
            if pair.at(b) is one and not (b.step.startswith("main") and b.work == "scores")
        }  # fmt: skip
        last = replace(pair.choice(one), rows=one.before + 1)
        total: Num = 0
        for _, size, bits in named(last):
            total = total + size * bits // 8
        yield Entry(name="what the check before named", kind=ACT, bytes=total, live=live,
                    source=ASSISTED_CODE)  # fmt: skip


def turns(pair: AssistedModels) -> dict[str, PassEvents]:
    """What each layer and head make and free, round after round."""
    made: dict[str, PassEvents] = {}
    for case, offset in ((pair.draft, OFFSET), (pair.main, 0)):
        done = walked(case)
        for one in case.table:
            if one.work == "layer":
                turn = done[one.kind, one.step, one.work]
                made[one.name] = PassEvents(
                    block=one.place + offset, script=turn.script, forward=True, given=turn.given,
                    kept=turn.kept, named=turn.named,
                    embedded=one.place == 0 and goes_in(case.run),
                )  # fmt: skip
            elif one.work in ("norm", "logits"):
                made[one.name] = PassEvents(
                    block=HEAD, script=behind(case, one).script, forward=True
                )
            elif one.work == "scores" and case is pair.draft:
                made[one.name] = PassEvents(block=HEAD, script=GONE, forward=True)
            elif one.work == "scores":
                here = pair.at(one)
                check = choose_token(pair.choice(here), first=not here.number)
                made[one.name] = PassEvents(block=SCORES, script=check.script, forward=True,
                                      given=check.given,
                                      kept=(check.script.exit, *check.kept))  # fmt: skip
    return made
