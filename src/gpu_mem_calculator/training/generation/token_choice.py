"""How generate chooses the next token from the logits of the last one (transformers 5.17.0).

Python's variables refer to tensors longer than these are needed: those of one step stay alive until
the next step assigns the variables again. So the tape of a choice starts with the tensors to which
the choice before still refers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import Num, choose, holds, sized
from ...pytorch.autograd.forward import ForwardPass, inference_pass
from ...pytorch.autograd.tape import Tape, Value

ROW_SORT_ROWS, ROW_SORT_LENGTH = 128, 1_000_000  # from either on, each row is sorted by itself
GREEDY, SAMPLE, BEAMS, CHECK = "greedy", "sample", "beams", "check"


class TokenChoice(Struct, frozen=True, kw_only=True):
    """What a token is chosen from, and how.

    - `how`: GREEDY, SAMPLE, BEAMS or CHECK (of an assistant's candidates).
    - `rows`: sequences, each beam one; a check has one for each candidate and one more.
    - `vocab`: logits of a row, of `bits` each.
    - `length`: tokens of a finished sequence, of which `new` are generated.
    - `top_k`, `top_p`: 0 and 1 leave the distribution as it is.
    - `temperature`: scores are divided by it, unless it is 1.
    - `upcast`: the model returns 16-bit logits in fp32 (accelerate 1.15 convert_outputs_to_fp32).
    - `before`: rows of the choice before, where they differ.
    """

    how: str
    rows: Num
    vocab: int
    bits: int
    length: Num = 0
    new: Num = 0
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    upcast: bool = False
    before: Num | None = None

    @property
    def logits(self) -> Num:
        """The number of logits of all rows."""
        return self.rows * self.vocab


def choose_token(choice: TokenChoice, *, first: bool) -> ForwardPass:
    """The pass that chooses a token; `first`: no token was chosen before."""
    tape = Tape()
    x = tape.value("logits", choice.logits, choice.bits, grad=False)
    last = choice if choice.before is None else replace(choice, rows=choice.before)
    old = (
        []
        if first
        else [
            tape.value(name, elements, bits, grad=False)
            for name, elements, bits in named_tensors(last)
        ]
    )
    left = WAYS[choice.how](tape, choice, x, list(old))
    return inference_pass(tape, x, left[0], given=old, kept=left[1:])


def named_tensors(choice: TokenChoice) -> Iterator[tuple[str, Num, int]]:
    """Tensors to which variables still refer in the next pass: name, elements, bits."""
    if choice.how == CHECK:
        yield "outputs.logits", choice.logits, choice.bits
        yield "new_logits", choice.logits, 32
    yield "next_token_logits", choice.logits, 32
    if choice.how == SAMPLE:
        if choice.top_k or choice.top_p < 1 or choice.temperature != 1:
            yield "next_token_scores", choice.logits, 32
        yield "probs", choice.logits, 32
    if choice.how == BEAMS:
        yield "log_probs", choice.logits, 32
        yield "topk_running_sequences", 2 * choice.rows * choice.length, 64
        yield "topk_running_beam_indices", 2 * choice.rows * choice.new, 32


def _reassign(tape: Tape, old: list[Value]) -> None:
    """A variable is assigned again: the first of `old`, to which it referred, is freed."""
    if old:
        tape.hold(old.pop(0))


def _greedy(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """Greedy: an fp32 copy of the logits, and its largest (generation/utils.py:3042)."""
    logits = tape.op("next_token_logits", x, bits=32)
    _reassign(tape, old)
    tape.hold(x)  # `outputs`, to the end of the step
    return [logits]


def _sample(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """Sampling: the warpers, a softmax, and one draw, for which torch allocates random numbers
    (torch 2.11 Distributions.cpp multinomial: q = exponential).
    """
    if choice.upcast:
        x = tape.cast(x, 32)
    logits = tape.op("next_token_logits", x, bits=32)
    _reassign(tape, old)
    scores = logits
    if choice.temperature != 1:
        scores = tape.op("scores.divided", scores)
    if choice.top_k:
        scores = _top_k(tape, choice, scores)
    if choice.top_p < 1:
        scores = _top_p(tape, choice, scores)
    if scores is not logits:
        _reassign(tape, old)
    probs = tape.op("probs", scores)
    _reassign(tape, old)
    tape.op("next_tokens", probs, elements=choice.rows, bits=64, temp=probs.bytes)
    tape.hold(x)
    return [logits, *([] if scores is logits else [scores]), probs]


def _top_k(tape: Tape, choice: TokenChoice, scores: Value) -> Value:
    """Scores below the k-th largest are removed (TopKLogitsWarper)."""
    count = choice.rows * choice.top_k
    best = tape.op("topk", scores, elements=count, temp=sized(count, 64))
    remove = tape.op("indices_to_remove", scores, best, bits=8)
    processed = tape.op("scores_processed", scores, remove)
    tape.hold(scores, remove)
    return processed


def _top_p(tape: Tape, choice: TokenChoice, scores: Value) -> Value:
    """Sorted logits, their cumulative probabilities, and the mask in the vocabulary's order
    (TopPLogitsWarper).
    """
    sorted_, index = _sort(tape, choice, scores)
    soft = tape.op("softmax", sorted_)
    cumulative = tape.op("cumulative_probs", soft)
    tape.hold(soft)
    remove = tape.op("sorted_indices_to_remove", cumulative, bits=8)
    scattered = tape.op("indices_to_remove", remove, index)
    processed = tape.op("scores_processed", scores, scattered)
    tape.hold(scores, sorted_, index, cumulative, remove, scattered)
    return processed


def _sort(tape: Tape, choice: TokenChoice, scores: Value) -> tuple[Value, Value]:
    """torch.sort of every row: values and indices.

    Between 2 and 127 rows are sorted as one, with two arrays of indices and rows, another of
    values, and cub's workspace; else an index and cub's workspace (torch 2.11 Sort.cu
    launch_stable_sort_kernel; on an H200 within 2 % for 8 sizes).
    """
    values = tape.op("sorted_logits", scores)
    count = choice.logits
    several = holds(choice.rows > 1) * holds(choice.rows < ROW_SORT_ROWS)
    several = several * holds(choice.vocab < ROW_SORT_LENGTH)
    alone = choose(choice.vocab >= ROW_SORT_LENGTH, choice.vocab, count) * (1 - several)
    joined = count * several
    counts = ((joined, 64), (joined, 64), (joined, 32), (alone, 64), (joined + alone, 96))
    work = tuple(sized(count, bits) for count, bits in counts)
    index = tape.op("sorted_indices", scores, bits=64, temp=work, inside=True)
    return values, index


def _beam_search(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """Log-probabilities, added to their beam's; twice as many beams as continue (_beam_search)."""
    logits = tape.op("logits", x, bits=32)
    _reassign(tape, old)
    alone = tape.op("log_probs", logits)
    _reassign(tape, old)
    tape.hold(x)  # `del model_outputs`
    total = tape.op("log_probs.added", alone)
    sequences = tape.op(
        "topk_running_sequences", total, bits=64, elements=2 * choice.rows * choice.length
    )
    indices = tape.op(
        "topk_running_beam_indices", total, bits=32, elements=2 * choice.rows * choice.new
    )
    _reassign(tape, old)
    _reassign(tape, old)
    return [logits, total, sequences, indices]


def _check(tape: Tape, choice: TokenChoice, x: Value, old: list[Value]) -> list[Value]:
    """A check: the logits after every candidate in fp32, twice; `outputs` still refers to those of
    the model (_assisted_decoding).
    """
    _reassign(tape, old)
    new = tape.op("new_logits", x, bits=32)
    _reassign(tape, old)
    copy = tape.op("next_token_logits", new)
    _reassign(tape, old)
    return [x, new, copy]


Way = Callable[[Tape, TokenChoice, Value, list[Value]], list[Value]]
WAYS: dict[str, Way] = {GREEDY: _greedy, SAMPLE: _sample, BEAMS: _beam_search, CHECK: _check}
