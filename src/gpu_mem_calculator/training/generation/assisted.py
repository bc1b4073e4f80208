"""Assisted generation: a small model proposes tokens, and the large one checks them in one pass.

transformers 5.17.0 generation/utils.py _assisted_decoding, candidate_generator.py. Whether a
candidate is accepted depends on the data; here none is, so that every token takes a round. The
caches reach the same length either way. Here are the rounds, their instants, and the entries of
both models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import ACT, CACHE, Entry
from ...ledger.num import EMPTY, Bytes, Num, nothing, sized, smaller
from ...ledger.source import Source, code
from ...pytorch.autograd.events import BlockEvents
from ...pytorch.autograd.forward import ForwardPass
from ...run.run import Run
from ..step.block_events import HEAD
from .case import GenerationCase
from .decode_steps import DecodeStep, LayerKind
from .entries import (
    CACHE_CODE,
    cached_bytes,
    choice_events,
    head_pass,
    layer_entries,
    layer_events,
    layer_passes,
    work_entries,
)
from .instants import (
    DECODE,
    PREFILL,
    STACK,
    GenerationInstant,
    before_layers,
    every_layer,
    new_instant,
    one_pass,
)
from .model_inputs import goes_in, inputs_before_layers
from .stream import PassEvents
from .token_choice import TokenChoice, choose_token, named_tensors


def running_caches(case: GenerationCase) -> Iterator[Entry]:
    """Caches of the model that runs, of the layers that do not: before and after their pass."""
    for kind, each in zip(case.found, case.passes, strict=True):
        for name, step in each.items():
            in_pass = [i for i in case.in_pass(name) if i.work != STACK]
            joining = [i for i in case.in_pass(name) if i.work == STACK]
            rows = [(step.left, {i.name: i.layers_before(kind) for i in in_pass})]
            rows.append((step.left, {i.name: len(kind.places) for i in joining}))
            if step.stored is not None:
                rows.append((step.stored, {i.name: i.layers_after(kind) for i in in_pass}))
            for tokens, live in rows:
                yield cache_entry(case, kind, tokens, live)


def cache_entry(
    case: GenerationCase, kind: LayerKind, tokens: Num, live: Mapping[str, Num]
) -> Entry:
    """The cache of one layer of a kind, with `tokens` of each sequence."""
    parts = cached_bytes(case, kind, tokens)
    total = EMPTY if nothing(tokens) else sum((size for _, size in parts), EMPTY)
    name = f"{kind.title}: cache"
    return Entry(name=name, kind=CACHE, bytes=total, live=live, source=CACHE_CODE)


def tensor_entry(
    name: str, size: Bytes, instants: Iterable[GenerationInstant], source: Source
) -> Entry:
    """A tensor of `size` bytes that is alive at `instants`."""
    live: dict[str, Num] = {i.name: 1 for i in instants}
    return Entry(name=name, kind=ACT, bytes=size, live=live, source=source)


ASSISTED_CODE = code("transformers 5.17.0 generation/utils.py _assisted_decoding")
CANDIDATES_CODE = code("transformers 5.17.0 generation/candidate_generator.py _generate_candidates")
DRAFT_OFFSET = 100_000  # added to the block numbers of the small model's layers
ID_TENSORS = 9  # with 8 bytes a token: ids, masks, positions of both models, and their copies
FREE_LOGITS = BlockEvents(sizes=(EMPTY,), entry=0, exit=-1, forward=(~0,))  # after they are read


class AssistedRound(Struct, frozen=True, kw_only=True):
    """One round of proposing and checking.

    `tokens`: tokens before it; `count`: its candidates; `before`: those of the round before.
    """

    number: int
    tokens: Num
    count: Num
    before: Num

    @property
    def phase(self) -> str:
        """The first round has the prompt, so it is prefill; the others are decode."""
        return DECODE if self.number else PREFILL


def rounds(run: Run, wanted: int) -> list[AssistedRound]:
    """The rounds that can have the peak, with `wanted` candidates each: the first two, the last one
    with all its candidates, the last; unrolled, those before them, too.
    """
    last = int(run.generated) - 1
    numbers = {0, 1, last - wanted, last}
    if run.unrolled:
        numbers |= {number - 1 for number in numbers}
    left = run.generated - 1
    return [
        AssistedRound(
            number=number,
            tokens=run.seq + number,
            count=smaller(wanted, left - number),
            before=smaller(wanted, left - number + 1),
        )
        for number in sorted(numbers)
        if 0 <= number <= last
    ]


def draft_steps(every: list[AssistedRound], unrolled: bool) -> dict[str, DecodeStep]:
    """The small model's passes by name. In each round: the prompt, later the last two tokens; then
    each candidate.
    """
    passes: dict[str, DecodeStep] = {}
    for one in every:
        length, count = one.tokens, int(one.count)
        stored = length + one.before - 2  # after the round before, which began a token earlier
        for i in range(count) if unrolled else sorted({0, count - 1} if count else ()):
            if i:
                step = DecodeStep(
                    seq=1, past=length + i - 1, stored=length + i - 1, left=length + i
                )
            elif one.number:
                step = DecodeStep(seq=2, past=length - 2, stored=stored, left=length, masked=True)
            else:
                step = DecodeStep(seq=length, left=length)
            passes[f"draft.{one.number}.{i}"] = step
    return passes


def main_steps(every: list[AssistedRound]) -> dict[str, DecodeStep]:
    """The large model's passes by name: the prompt with the first candidates, then candidates."""
    passes: dict[str, DecodeStep] = {}
    for one in every:
        length, count = one.tokens, one.count
        if not one.number:
            step = DecodeStep(seq=length + count, left=length + count, logits=count + 1)
        else:
            seq = 1 if int(count) == 0 else count + 1
            step = DecodeStep(
                seq=seq,
                past=length - 1,
                stored=length - 1 + one.before,
                left=length + count,
                masked=int(count) > 0,
                logits=seq,
            )
        passes[f"main.{one.number}"] = step
    return passes


def draft_instants(case: GenerationCase, every: list[AssistedRound]) -> Iterator[GenerationInstant]:
    """The instants of the small model, round by round."""
    for one in every:
        for i in range(int(one.count)):
            name = f"draft.{one.number}.{i}"
            step = case.passes[0].get(name)
            if step is not None:
                yield from _pass_instants(case, name, step, one.phase, "candidates")
        if int(one.count):
            yield new_instant(name, one.phase, STACK, "candidates, their scores", 1, STACK)


def main_instants(case: GenerationCase, every: list[AssistedRound]) -> Iterator[GenerationInstant]:
    """The instants of the large model, round by round."""
    for one, (name, step) in zip(every, case.passes[0].items(), strict=True):
        yield from _pass_instants(case, name, step, one.phase, "check" if one.number else "prefill")


def _pass_instants(
    case: GenerationCase, name: str, step: DecodeStep, phase: str, title: str
) -> Iterator[GenerationInstant]:
    if case.run.unrolled:
        yield from every_layer(case.found, name, phase, title)
        return
    if step.stored is None:
        first = inputs_before_layers(case.how, case.found, [each[name] for each in case.passes])
        yield from before_layers(name, title, first)
    yield from one_pass(case.found, name, phase, title)


def merge_instants(
    draft: Iterable[GenerationInstant], main: Iterable[GenerationInstant]
) -> list[GenerationInstant]:
    """The instants of both models round by round, the small model's first."""
    both = chain(draft, main)
    return sorted(both, key=lambda i: (int(i.step.split(".")[1]), i.step.startswith("main")))


class AssistedModels(Struct, frozen=True, kw_only=True):
    """Both models of an assisted generation, and its rounds."""

    draft: GenerationCase
    main: GenerationCase
    every: list[AssistedRound]

    def at(self, instant: GenerationInstant) -> AssistedRound:
        """The round of an instant."""
        number = int(instant.step.split(".")[1])
        return next(one for one in self.every if one.number == number)

    def choice(self, one: AssistedRound) -> TokenChoice:
        """The large model's choice in a round: it checks each candidate and adds one token."""
        return replace(self.main.choice, rows=one.count + 1, before=one.before + 1)


def round_entries(pair: AssistedModels) -> Iterator[Entry]:
    """Entries that a rolled ledger has in addition to weights, inputs and `shared_entries`: caches,
    the layer or head that runs, and the check of the candidates.
    """
    for case, other in ((pair.draft, pair.main), (pair.main, pair.draft)):
        yield from layer_entries(case)
        yield from running_caches(case)
        yield from _waiting_caches(pair, case, other)
        for instant in case.table:
            if instant.work in ("norm", "logits"):
                title = "final norm" if instant.work == "norm" else "logits"
                yield from work_entries(title, head_pass(case, instant).moment, instant)
    for instant in pair.draft.table:
        if instant.work == "scores":
            size = sized(pair.draft.choice.logits, pair.draft.how.bits)
            yield tensor_entry("logits", size, [instant], CANDIDATES_CODE)
    for instant in pair.main.table:
        if instant.work == "scores":
            peak = _check(pair, instant).moment
            yield from work_entries("candidates checked", peak, instant, ASSISTED_CODE)
    yield from _last_check(pair)


def _check(pair: AssistedModels, instant: GenerationInstant) -> ForwardPass:
    """The large model's check of a round's candidates."""
    one = pair.at(instant)
    return choose_token(pair.choice(one), first=not one.number)


def shared_entries(pair: AssistedModels) -> Iterator[Entry]:
    """Entries that rolled and unrolled ledgers have: ids, and the candidates' scores."""
    row = sized(pair.draft.choice.logits, 32)
    instants = pair.draft.table
    alive: dict[str, Num] = {
        i.name: int(i.step.split(".")[2]) + (i.work in ("scores", STACK)) for i in instants
    }
    yield Entry("scores of the candidates", ACT, row, alive, CANDIDATES_CODE)
    for one in pair.every:
        proposing = [i for i in instants if pair.at(i) is one]
        checking = [i for i in pair.main.table if pair.at(i) is one]
        joined = [i for i in proposing if i.work == STACK]
        rows = ((one.count, [*joined, *checking]), (one.before, proposing if one.number else []))
        for count, where in rows:
            yield tensor_entry("candidate logits", row * count, where, ASSISTED_CODE)
        ids = sized(ID_TENSORS * (one.tokens + one.count), 64)
        in_round = (*proposing, *checking)
        yield tensor_entry("token ids, masks and positions", ids, in_round, ASSISTED_CODE)


def _waiting_caches(
    pair: AssistedModels, case: GenerationCase, other: GenerationCase
) -> Iterator[Entry]:
    """Caches of the `other` model, which waits while `case` runs."""
    for one in pair.every:
        names = [i.name for i in case.table if pair.at(i) is one]
        if other is pair.main:
            tokens = one.tokens - 1 + one.before if one.number else 0
        else:
            tokens = one.tokens + one.count - 1
            if int(one.count) == 0:
                tokens = one.tokens + one.before - 2 if one.number else 0
        for kind in other.found:
            yield cache_entry(other, kind, tokens, dict.fromkeys(names, len(kind.places)))


def _last_check(pair: AssistedModels) -> Iterator[Entry]:
    """Tensors of the large model's last check, to which generate refers until the next one."""
    for one in pair.every:
        if not one.number:
            continue
        before_check = [
            i
            for i in (*pair.draft.table, *pair.main.table)
            if pair.at(i) is one and not (i.step.startswith("main") and i.work == "scores")
        ]
        last = replace(pair.choice(one), rows=one.before + 1)
        total = EMPTY
        for _, size, bits in named_tensors(last):
            total = total + sized(size, bits)
        yield tensor_entry("what the check before named", total, before_check, ASSISTED_CODE)


def assisted_events(pair: AssistedModels) -> dict[str, PassEvents]:
    """The events of each layer and of the heads of both models, by the instant's name."""
    events: dict[str, PassEvents] = {}
    for case, offset in ((pair.draft, DRAFT_OFFSET), (pair.main, 0)):
        passes = layer_passes(case)
        for instant in case.table:
            name = instant.name
            if instant.work == "layer":
                layer = passes[instant.kind, instant.step, instant.work]
                embedded = instant.place == 0 and goes_in(case.run)
                events[name] = layer_events(layer, instant.place + offset, embedded=embedded)
            elif instant.work in ("norm", "logits"):
                block = head_pass(case, instant).script
                events[name] = PassEvents(block=HEAD, script=block, forward=True)
            elif instant.work == "scores" and case is pair.draft:
                events[name] = PassEvents(block=HEAD, script=FREE_LOGITS, forward=True)
            elif instant.work == "scores":
                events[name] = choice_events(_check(pair, instant))
    return events
