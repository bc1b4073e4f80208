"""A server's speed by roofline: an upper bound, and what bounds it."""

from __future__ import annotations

from msgspec import Struct

from ..model.arch import Arch
from .card import Card
from .work import MULTIPLY_ADD, Work, attention_flops, matmul_elements, reduced, touched

COMPUTE, MEMORY, LINK = "compute", "memory bandwidth", "communication"


class Serving(Struct, frozen=True, kw_only=True):
    """What is served: on each of `tp` ranks weights of so many bytes, and a sequence's cache."""

    arch: Arch
    card: Card
    tp: int
    weights_bytes: int  # of the whole model, over all ranks of a pipeline
    dtype: str  # of the arithmetic
    bits: int  # of what is sent


class Pass(Struct, frozen=True):
    """How long one pass takes at least, and what bounds it."""

    seconds: float
    bound: str


def timed(work: Work, serving: Serving) -> Pass:
    """Computing and reading overlap; a sum over ranks waits for both and is waited for."""
    card = serving.card
    compute = work.flops / card.rate(serving.dtype)
    memory = work.read_bytes / card.memory_bytes_per_second
    sent = work.messages * card.link_seconds + (
        work.sent_bytes / card.link_bytes_per_second if work.sent_bytes else 0.0)  # fmt: skip
    bound = COMPUTE if compute >= memory else MEMORY
    return Pass(max(compute, memory) + sent, LINK if sent > max(compute, memory) else bound)


def prefill(serving: Serving, prompt: int, sequences: int = 1) -> Pass:
    """The prompts in one pass: each token sees half of its prompt on average."""
    arch, tokens = serving.arch, prompt * sequences
    head = arch.vocab * arch.hidden
    each = MULTIPLY_ADD * (matmul_elements(arch) - head) + attention_flops(arch, prompt / 2)
    sent, messages = reduced(arch, tokens, serving.tp, serving.bits)
    work = Work(
        flops=(tokens * each + MULTIPLY_ADD * sequences * head) / serving.tp,
        read_bytes=serving.weights_bytes * touched(arch, tokens),
        sent_bytes=sent, messages=messages,
    )  # fmt: skip
    return timed(work, serving)


def decode(serving: Serving, context: int, sequences: int, cache_bytes: int) -> Pass:
    """One token of each sequence: every weight and every sequence's cache is read once."""
    arch = serving.arch
    each = MULTIPLY_ADD * matmul_elements(arch) + attention_flops(arch, context)
    sent, messages = reduced(arch, sequences, serving.tp, serving.bits)
    work = Work(
        flops=sequences * each / serving.tp,
        read_bytes=serving.weights_bytes * touched(arch, sequences) + sequences * cache_bytes,
        sent_bytes=sent, messages=messages,
    )  # fmt: skip
    return timed(work, serving)
