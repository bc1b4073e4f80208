"""How generate chooses the next token from the logits of the last one (transformers 5.17.0).

Python's names hold tensors longer than they are of use: those of one step stay until the next one
has its own. So every choice is a tape that is given the names of the choice before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..autograd.forward import ForwardPass, passing
from ..autograd.tape import Tape, Value
from ..ledger.num import Num, choose, holds

ROWS_ALONE, LONG = 128, 1_000_000  # rows from which on, length from which on, a sort goes by rows
GREEDY, SAMPLE, BEAMS, CHECK = "greedy", "sample", "beams", "check"


class TokenChoice(Struct, frozen=True, kw_only=True):
    """What a token is chosen from, and how.

    `rows` sequences (all beams) of `vocab` logits of `bits` each; `length` tokens in the end, of
    which `new` are generated. `top_k` 0 and `top_p` 1 leave the distribution as it is. An assisted
    choice has a row for each candidate and one more, and `before` rows in the one before.
    """

    how: str
    rows: Num
    vocab: int
    bits: int
    length: Num = 0
    new: Num = 0
    top_k: int = 0
    top_p: float = 1.0
    before: Num = None

    @property
    def logits(self) -> Num:
        """Logits of every sequence."""
        return self.rows * self.vocab


def choose_token(choice: TokenChoice, *, first: bool) -> ForwardPass:
    """The choice of a token; `first`: there was none before it."""
    tape = Tape()
    x = tape.value("logits", choice.logits, choice.bits, grad=False)
    last = choice if choice.before is None else replace(choice, rows=choice.before)
    old = [] if first else [tape.value(name, elements, bits, grad=False)
                            for name, elements, bits in named(last)]  # fmt: skip
    kept = WAYS[choice.how](tape, choice, x, list(old))
    return passing(tape, x, kept[0], given=old, kept=kept[1:])


def named(choice: TokenChoice) -> Iterator[tuple[str, Num, int]]:
    """What still has a name when the next pass runs: name, elements, bits."""
    if choice.how == CHECK:
        yield "outputs.logits", choice.logits, choice.bits
        yield "new_logits", choice.logits, 32
    yield "next_token_logits", choice.logits, 32
    if choice.how == SAMPLE:
        if choice.top_k or choice.top_p < 1:
            yield "next_token_scores", choice.logits, 32
        yield "probs", choice.logits, 32
    if choice.how == BEAMS:
        yield "log_probs", choice.logits, 32
        yield "topk_running_sequences", 2 * choice.rows * choice.length, 64
        yield "topk_running_beam_indices", 2 * choice.rows * choice.new, 32


def _replaced(tape: Tape, old: list[Value]) -> None:
    """A name is given away: what it named goes."""
    if old:
        tape.hold(old.pop(0))


def _greedy(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """An fp32 copy of the logits, and its highest (generation/utils.py:3042)."""
    logits = tape.op("next_token_logits", x, bits=32)
    _replaced(tape, old)
    tape.hold(x)  # `outputs`, to the end of the step
    return [logits]


def _sampled(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """The warpers, a softmax, and one draw, for which torch makes numbers of its own
    (torch 2.11 Distributions.cpp multinomial: q = exponential).
    """
    logits = tape.op("next_token_logits", x, bits=32)
    _replaced(tape, old)
    scores = logits
    if choice.top_k:
        scores = _top_k(tape, choice, scores)
    if choice.top_p < 1:
        scores = _top_p(tape, choice, scores)
    if scores is not logits:
        _replaced(tape, old)
    probs = tape.op("probs", scores)
    _replaced(tape, old)
    tape.op("next_tokens", probs, elements=choice.rows, bits=64, temp=probs.bytes)
    tape.hold(x)
    return [logits, *([] if scores is logits else [scores]), probs]


def _top_k(tape: Tape, choice: TokenChoice, scores: Value) -> Value:
    """What is below the k-th highest is removed (TopKLogitsWarper)."""
    best = tape.op("topk", scores, elements=choice.rows * choice.top_k,
                   temp=choice.rows * choice.top_k * 8)  # fmt: skip
    remove = tape.op("indices_to_remove", scores, best, bits=8)
    kept = tape.op("scores_processed", scores, remove)
    tape.hold(scores, remove)
    return kept


def _top_p(tape: Tape, choice: TokenChoice, scores: Value) -> Value:
    """Sorted logits, their cumulated probabilities, and the mask back in its old order
    (TopPLogitsWarper).
    """
    sorted_, index = _sorted(tape, choice, scores)
    soft = tape.op("softmax", sorted_)
    cumulative = tape.op("cumulative_probs", soft)
    tape.hold(soft)
    remove = tape.op("sorted_indices_to_remove", cumulative, bits=8)
    scattered = tape.op("indices_to_remove", remove, index)
    kept = tape.op("scores_processed", scores, scattered)
    tape.hold(scores, sorted_, index, cumulative, remove, scattered)
    return kept


def _sorted(tape: Tape, choice: TokenChoice, scores: Value) -> tuple[Value, Value]:
    """torch.sort of every row.

    Between 2 and 127 rows are sorted as one, with two arrays of indices and rows, another of
    values, and what cub makes of them; else an index and what cub makes (torch 2.11 Sort.cu
    launch_stable_sort_kernel; on an H200 within 2 % for 8 sizes).
    """
    values = tape.op("sorted_logits", scores)
    count = choice.logits
    several = holds(choice.rows > 1) * holds(choice.rows < ROWS_ALONE) * holds(choice.vocab < LONG)
    alone = choose(choice.vocab >= LONG, choice.vocab, count) * (1 - several)
    joined = count * several
    work = (joined * 8, joined * 8, joined * 4, alone * 8, joined * 12 + alone * 12)
    index = tape.op("sorted_indices", scores, bits=64, temp=work, inside=True)
    return values, index


def _beam(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """Log-probabilities, added to their beam's; twice as many beams as go on (_beam_search)."""
    logits = tape.op("logits", x, bits=32)
    _replaced(tape, old)
    alone = tape.op("log_probs", logits)
    _replaced(tape, old)
    tape.hold(x)  # `del model_outputs`
    total = tape.op("log_probs.added", alone)
    sequences = tape.op("topk_running_sequences", total, bits=64,
                        elements=2 * choice.rows * choice.length)  # fmt: skip
    indices = tape.op("topk_running_beam_indices", total, bits=32,
                      elements=2 * choice.rows * choice.new)  # fmt: skip
    _replaced(tape, old)
    _replaced(tape, old)
    return [logits, total, sequences, indices]


def _checked(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """The logits behind every candidate in fp32, twice; `outputs` keeps its name, too
    (_assisted_decoding).
    """
    _replaced(tape, old)
    new = tape.op("new_logits", x, bits=32)
    _replaced(tape, old)
    copy = tape.op("next_token_logits", new)
    _replaced(tape, old)
    return [x, new, copy]


WAYS: dict[str, Callable[[Tape, TokenChoice, Value, list[Value]], list[Value]]] = {
    GREEDY: _greedy, SAMPLE: _sampled, BEAMS: _beam, CHECK: _checked,
}  # fmt: skip
