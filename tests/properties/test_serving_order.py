"""More memory, more ranks, longer sequences: a served model's figures go the right way."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_mem_calculator.estimates.calculator import Estimate
from gpu_mem_calculator.estimates.serving.capacity import matrix
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.models.arch.blocks import Attention
from gpu_mem_calculator.run.served import WEIGHTS
from gpu_mem_calculator.serving import server

from .test_serving import POOLS, QUICK, changed, fixed, runs, tried


@given(fixed(), st.sampled_from([1.02, 1.3, 2.0]))
@QUICK
def test_more_memory_never_holds_fewer_tokens(run: dict[str, Any], times: float) -> None:
    """A larger card of the same kind, the server's own choices being the same."""
    small = tried(run)
    memory = int(small.resolved.hardware.card_bytes * times)
    large = tried({**run, "hardware": {**run["hardware"], "gpu_memory_bytes": memory}})
    assert tokens(large) >= tokens(small)
    assert large.result.fits_on_gpu or not small.result.fits_on_gpu


@given(fixed(), st.sampled_from([(0.3, 0.5), (0.7, 0.75), (0.8, 0.95)]))
@QUICK
def test_a_larger_share_never_gives_fewer_tokens(
    run: dict[str, Any], shares: tuple[float, float]
) -> None:
    """`gpu_memory_utilization`, by whatever name the server has for it."""
    assume("gpu_memory_utilization" in run["inference"])
    less, more = (tried(changed(run, gpu_memory_utilization=share)) for share in shares)
    assume(more.result.fits_on_gpu)  # too large a share leaves too little for the rest
    assert tokens(more) >= tokens(less)


@given(fixed())
@QUICK
def test_twice_the_ranks_never_hold_fewer_tokens(run: dict[str, Any]) -> None:
    """Where key-value heads are cut, or weights are more than what ranks add."""
    ranks = run["inference"].get("tensor_parallel_size")
    assume(ranks is not None)
    one = tried(run)
    two = tried(changed(run, tensor_parallel_size=2 * ranks))
    heads = {
        mixer.kv_heads
        for layer in one.resolved.run.arch.layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention)
    }
    cut = bool(heads) and all(count % (2 * ranks) == 0 for count in heads)
    freed = one.served[0].figure(WEIGHTS) - two.served[0].figure(WEIGHTS)
    assume(two.result.fits_on_gpu and (cut or freed > 3 * GIB))
    assert tokens(two) >= tokens(one)


@given(fixed())
@QUICK
def test_a_cache_in_fp8_holds_no_fewer_tokens(run: dict[str, Any]) -> None:
    """At most the bytes of a token in 16 bits."""
    assume("kv_cache_dtype" in server(run["inference"]["engine"]).options)
    assert tokens(tried(changed(run, kv_cache_dtype="fp8"))) >= tokens(tried(run))


@given(fixed(), st.sampled_from([(512, 1024), (1000, 1500), (2048, 8192)]))
@QUICK
def test_longer_sequences_are_never_more_at_once(
    run: dict[str, Any], lengths: tuple[int, int]
) -> None:
    """`max_seq_len` and the concurrency at it."""
    assume("n_batch" not in server(run["inference"]["engine"]).options)  # its cache follows it
    short, long = (tried(changed(run, max_seq_len=length)) for length in lengths)
    assert concurrency(long) <= concurrency(short) * (1 + 1e-9)


def tokens(estimate: Estimate) -> int:
    """What the cache holds."""
    assert estimate.result.serving is not None
    return 0 if estimate.result.serving.problem else estimate.result.serving.kv_tokens


def concurrency(estimate: Estimate) -> float:
    """Sequences of the longest length at once."""
    assert estimate.result.serving is not None
    return estimate.result.serving.max_concurrency


@given(runs(POOLS))
@QUICK
def test_a_longer_sequence_takes_no_less_and_the_table_says_so(run: dict[str, Any]) -> None:
    """`sequence_bytes` grows; the most that fit are the whole sequences of the tightest stage."""
    estimate = tried(run)
    longest = min(one.max_seq_len for one in estimate.served)
    contexts = sorted({min(longest, c) for c in (1, 2, 17, 128, 1000, 4096, longest)})
    for one in estimate.served:
        sizes = [one.sequence_bytes(context) for context in contexts]
        assert sizes == sorted(sizes)
        assert min(sizes) >= 0
    found = matrix(estimate, contexts, (1, 2))
    for context, most, shares in zip(found.contexts, found.most, found.shares, strict=True):
        rooms = [
            min(one.most_sequences, one.room_bytes // size)
            for one in estimate.served
            if (size := one.sequence_bytes(context))
        ]
        assert most == min(rooms, default=estimate.served[0].most_sequences)
        assert shares[0] is None or (shares[0] <= 1) == (most >= 1)
