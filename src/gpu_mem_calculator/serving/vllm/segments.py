"""What torch keeps after the profile run: vLLM before 0.6.4 deducts that, not the peak of tensors.

vllm 0.6.3 vllm/worker/worker.py determine_num_available_blocks compares the free memory of the card
before and after, and torch's cached segments are not released in between; 0.6.4 reads torch's own
peak. The instants' tensors are replayed in order through a model of torch's allocator: each instant
reuses what the one before has freed, as far as its blocks fit.

Tensors: the layer's input, the residual and the norm's output stay; attention adds q, k and v, its
output and the kernel's (vllm 0.6.1 vllm/attention/backends/flash_attn.py), a feed-forward gate and
up, their product and the output. Sums over ranks are in place (0.6.1 vllm/distributed/
parallel_state.py all_reduce), logits are gathered from all ranks (gather).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.source import code
from ...pytorch.replay.replays import history
from ...pytorch.replay.stream import AllocationStream
from ...run.cuda.chips import cublas_bytes
from ...run.run import Run
from ...run.weights.layer_widths import LayerWidths, distinct_widths
from ...run.weights.shards import ServerShard
from .activations import ProfilePeak
from .parts import SourcedBytes, element_bytes, step_tokens
from .sampler import FP32_FROM, logit_bytes, sampled_rows
from .versions import version

SOURCE = code("vllm 0.6.3 vllm/worker/worker.py determine_num_available_blocks")


def with_segments(run: Run, shard: ServerShard, peak: ProfilePeak) -> ProfilePeak:
    """The peak, and what segments hold beyond it."""
    reserved = reserved_bytes(run, shard)
    beyond = max(0, reserved - peak.bytes)
    text = f"{peak.bytes + beyond:,} bytes of segments - {peak.bytes:,} of tensors"
    kept = SourcedBytes("segments beyond the tensors", beyond, SOURCE, text)
    return replace(peak, parts=(*peak.parts, kept)) if beyond else peak


def reserved_bytes(run: Run, shard: ServerShard) -> int:
    """Bytes that torch has reserved at the end of the profile run."""
    kept = [int(cublas_bytes(run.compute_capability))]
    if not shard.embedding:  # hidden states of the stage before
        kept.append(step_tokens(run) * run.arch.hidden * element_bytes(run))
    sizes, events = list(kept), list(range(len(kept)))
    for instant in _instants(run, shard):
        tensors = range(len(sizes), len(sizes) + len(instant))
        sizes += instant
        events += [*tensors, *(~tensor for tensor in tensors)]
    return history(AllocationStream.of(sizes, events))[-1][1]


def _instants(run: Run, shard: ServerShard) -> Iterator[list[int]]:
    """Sizes of the tensors that are alive together, instant by instant."""
    row = step_tokens(run) * element_bytes(run)
    for widths in distinct_widths(run.arch, shard):
        for terms in _layer_terms(widths):
            yield [row * term for term in (*[widths.hidden] * 3, *terms)]
    if shard.head:
        yield from _sampling(run, shard)


def _layer_terms(widths: LayerWidths) -> Iterator[tuple[int, ...]]:
    """Elements of a token in each tensor beside the layer's inputs."""
    yield widths.mixed, widths.read, widths.read
    if widths.up:
        yield widths.up, widths.act, widths.hidden
    experts = widths.experts
    if experts is not None:
        rows = experts.top_k
        yield rows * experts.up, rows * experts.act, rows * widths.hidden, widths.hidden


def _sampling(run: Run, shard: ServerShard) -> Iterator[list[int]]:
    """Logits gathered, then sorted: values, places, places before, the sort's own copies."""
    rows, size = sampled_rows(run), element_bytes(run)
    logits, each = rows * run.arch.vocab, logit_bytes(run, size)
    hidden = [tokens * run.arch.hidden * size for tokens in (step_tokens(run), rows)]
    if shard.tp > 1:
        yield [*hidden, *[logits * size // shard.tp] * (shard.tp + 1), logits * size]
    cast = [logits * each] if version(run) >= FP32_FROM else []
    yield [*hidden, logits * size, *cast, *(logits * one for one in (each, 8, 8, each + 8))]
