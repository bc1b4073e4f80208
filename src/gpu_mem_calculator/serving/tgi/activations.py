"""TGI's warm-up: one prefill of max_batch_prefill_tokens, with a cache just for it.

Its cached segments are not given back before TGI looks at what is free, so the reserved bytes
count (server/text_generation_server/models/flash_causal_lm.py warmup); a stream of what the layers
make and free is played through a model of torch's allocator.

Legend: T tokens of the prefill, h hidden, V vocabulary. Names are those of flash_llama_modeling.py,
whose locals live until a layer returns.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import ceil_div
from ...ledger.remember import remembered
from ...ledger.units import MIB
from ...replay.allocator import history
from ...replay.needs import needs_bytes
from ...replay.stream import AllocationStream
from ...run.run import Run
from ...step.workspaces import cublas_bytes
from ...weights.layer_widths import LayerWidths, distinct_widths
from ...weights.rank_weights import run_scheme
from ...weights.shards import ServerShard
from .defaults import (
    attention_kernels,
    block_size,
    max_input_tokens,
    max_request_tokens,
    prefill_tokens,
)
from .events import StreamRecorder
from .images import PromptImage, prompt_image, record_image
from .versions import MARLIN, version

FLASHINFER_BYTES = 128 * MIB  # layers/attention/flashinfer.py get_workspace
CHUNK = 32768  # tokens that fused_moe takes at once
IN_PLACE = (2, 4, 0)  # log probabilities take the logits' place since
LAYERS_PER_KIND = 4  # layers of each kind that are played; more change nothing
ELEMENT_BYTES = 2  # bytes of an element
AWQ_PARTS = 8


def requests(run: Run) -> int:
    """Prompts of the warm-up: as long as allowed."""
    tokens = prefill_tokens(run)
    return int(ceil_div(tokens, min(max_input_tokens(run) or tokens, tokens)))


def warm_tokens(run: Run) -> int:
    """Tokens that the warm-up's own cache holds: whole requests where their length is known."""
    tokens, most = prefill_tokens(run), max_request_tokens(run)
    block = block_size(run)
    if most is None:
        return int(ceil_div(tokens, block)) * block
    return requests(run) * int(ceil_div(most - 1, block)) * block


class WarmupPrefill(Struct, frozen=True, kw_only=True):
    """What the stream is made of: layers of each kind, tokens, and rows of logits.

    `copied`: log probabilities do not take the logits' place. `parts`: sums of a matmul that are
    kept apart. `query`: queries are copied for the kernel.
    """

    layers: tuple[LayerWidths, ...]
    tokens: int
    rows: int
    vocab: int
    ranks: int
    copied: bool = False
    parts: int = 1
    query: bool = False
    seen: PromptImage | None = None


def warm_up_bytes(run: Run, shard: ServerShard, room: int | None = None) -> int:
    """What torch has reserved for the prefill when it is over. Where there is less `room`, the
    allocator gives cached segments back and tries again.
    """
    plain, prefill = _workspaces(run), _prefill(run, shard)
    reserved = plain + _reserved_bytes(prefill)
    if room is None or reserved <= room or plain + _needed_bytes(prefill) > room:
        return reserved
    return plain + _reserved_bytes(prefill, room - plain)


def least_bytes(run: Run, shard: ServerShard) -> int:
    """What the prefill gets by with."""
    return _workspaces(run) + _needed_bytes(_prefill(run, shard))


def _workspaces(run: Run) -> int:
    flashinfer = FLASHINFER_BYTES if attention_kernels(run) == "flashinfer" else 0
    return cublas_bytes(run.compute_capability) + flashinfer


def _prefill(run: Run, shard: ServerShard) -> WarmupPrefill:
    every = version(run) < (3, 0, 0) or bool(run.options.get("enable_prefill_logprobs"))
    tokens, count = prefill_tokens(run), requests(run)
    each = min(max_input_tokens(run) or tokens, tokens)
    return WarmupPrefill(
        layers=distinct_widths(run.arch, shard),
        tokens=tokens,
        rows=tokens if every else count,
        vocab=run.arch.vocab,
        ranks=shard.tp,
        copied=every and version(run) < IN_PLACE,
        parts=_split_k_parts(run),
        query=attention_kernels(run) == "flashinfer",
        seen=prompt_image(run, shard.tp, count, each),
    )


def _split_k_parts(run: Run) -> int:
    """Sums that AWQ's own kernel keeps apart (layers/awq/quantize/qmodule.py)."""
    own = version(run) < MARLIN or float(run.compute_capability) < 8
    return AWQ_PARTS if own and run_scheme(run).name == "awq" else 1


@remembered(64, always=True)
def _reserved_bytes(prefill: WarmupPrefill, cap: int | None = None) -> int:
    """At the end."""
    return history(_stream(prefill), cap=cap)[-1][1]


@remembered(64, always=True)
def _needed_bytes(prefill: WarmupPrefill) -> int:
    return needs_bytes(_stream(prefill))


def _stream(one: WarmupPrefill) -> AllocationStream:
    """The layers, then the head: logits, and perhaps a copy of them."""
    tape, row = (
        StreamRecorder(),
        one.tokens * (one.layers[0].hidden if one.layers else 0) * ELEMENT_BYTES,
    )
    masks = [] if one.seen is None else record_image(tape, one.seen)
    given: list[int] = [tape.make(row)]
    for wide in (wide for wide in one.layers for _ in range(LAYERS_PER_KIND)):
        made = _record_layer(tape, wide, one, first=len(given) == 1)
        tape.free(*given)
        given = made
    normed = tape.make(row)
    tape.free(tape.make(row), *given)
    if one.ranks > 1:
        own = tape.make(one.rows * int(ceil_div(one.vocab, one.ranks)) * ELEMENT_BYTES)
        logits = tape.make(one.rows * one.vocab * ELEMENT_BYTES)
        tape.free(own)
    else:
        logits = tape.make(one.rows * one.vocab * ELEMENT_BYTES)
    tape.free(normed, *masks)
    if one.copied:
        tape.free(tape.make(one.rows * one.vocab * ELEMENT_BYTES))
    tape.free(logits)
    return AllocationStream(sizes=tape.sizes, events=tape.events)


def _record_linear(tape: StreamRecorder, size: int, parts: int) -> int:
    """A matmul, perhaps in parts that are added up."""
    if parts == 1:
        return tape.make(size)
    apart = tape.make(parts * size)
    out = tape.make(size)
    tape.free(apart)
    return out


def _record_layer(
    tape: StreamRecorder, wide: LayerWidths, one: WarmupPrefill, *, first: bool
) -> list[int]:
    """One layer: its output and the residual outlive it. The first has no residual to add."""
    tokens, parts, row = one.tokens, one.parts, one.tokens * wide.hidden * ELEMENT_BYTES
    normed = [tape.make(row) for _ in range(1 if first else 2)]
    mixed = _record_linear(tape, tokens * wide.mixed * ELEMENT_BYTES, parts)
    asked = [tape.make(tokens * wide.read * ELEMENT_BYTES)] if one.query else []
    read = tape.make(tokens * wide.read * ELEMENT_BYTES)
    tape.free(*asked)
    attended = _record_linear(tape, row, parts)
    tape.free(mixed, read)
    second, rest = tape.make(row), tape.make(row)
    made = []
    if wide.experts is not None:
        made.append(_record_experts(tape, wide, tokens))
    if wide.up:
        up = _record_linear(tape, tokens * wide.up * ELEMENT_BYTES, parts)
        act = tape.make(tokens * wide.act * ELEMENT_BYTES)
        gated = wide.up > wide.act
        product = tape.make(tokens * wide.act * ELEMENT_BYTES) if gated else act
        tape.free(*((act,) if gated else ()))
        made.append(_record_linear(tape, row, parts))
        tape.free(up, product)
    out = made[0] if len(made) == 1 else tape.make(row)
    tape.free(*normed, attended, second, *(made if len(made) != 1 else ()))
    return [out, rest]


def _record_experts(tape: StreamRecorder, wide: LayerWidths, tokens: int) -> int:
    """fused_moe: what goes into the activation, what comes out, and the rows behind, in chunks."""
    assert wide.experts is not None
    rows = min(tokens, CHUNK) * wide.experts.top_k
    logits = tape.make(tokens * wide.experts.count * ELEMENT_BYTES)
    caches = [
        tape.make(rows * width * ELEMENT_BYTES)
        for width in (wide.experts.up, wide.experts.act, wide.hidden)
    ]
    out = tape.make(tokens * wide.hidden * ELEMENT_BYTES)
    tape.free(logits, *caches)
    return out
