"""TGI's warm-up: one prefill of max_batch_prefill_tokens, with a cache just for it.

Its cached segments are not given back before TGI looks at what is free, so the reserved bytes
count (server/text_generation_server/models/flash_causal_lm.py warmup); a stream of what the layers
make and free is played through a model of torch's allocator.

Legend: T tokens of the prefill, h hidden, V vocabulary. Names are those of flash_llama_modeling.py,
whose locals live until a layer returns.
"""

from __future__ import annotations

from functools import lru_cache

from ...ledger.num import ceil_div
from ...ledger.units import MIB
from ...replay.allocator import replay
from ...replay.stream import Stream
from ..run import Run
from ..runtime import cublas_bytes
from ..serving.shard import Shard
from ..serving.widths import Widths, kinds
from .tape import Tape
from .versions import attention, block_size, longest, max_input_tokens, prefill_tokens, version

FLASHINFER_BYTES = 128 * MIB  # layers/attention/flashinfer.py get_workspace
CHUNK = 32768  # tokens that fused_moe takes at once
IN_PLACE = (2, 4, 0)  # log probabilities take the logits' place since
TURNS = 2  # layers of each kind that are played; more change nothing


def requests(run: Run) -> int:
    """Prompts of the warm-up: as long as allowed."""
    tokens = prefill_tokens(run)
    return int(ceil_div(tokens, min(max_input_tokens(run) or tokens, tokens)))


def warm_tokens(run: Run) -> int:
    """Tokens that the warm-up's own cache holds: whole requests where their length is known."""
    tokens, most = prefill_tokens(run), longest(run)
    block = block_size(run)
    if most is None:
        return int(ceil_div(tokens, block)) * block
    return requests(run) * int(ceil_div(most - 1, block)) * block


def warm_up_bytes(run: Run, shard: Shard) -> int:
    """What torch has reserved for the prefill when it is over."""
    size = 4 if run.precision == "fp32" else 2
    every = version(run) < (3, 0, 0) or bool(run.options.get("enable_prefill_logprobs"))
    rows = prefill_tokens(run) if every else requests(run)
    workspaces = cublas_bytes(run.compute_capability)
    workspaces += FLASHINFER_BYTES if attention(run) == "flashinfer" else 0
    return workspaces + _reserved(
        kinds(run.arch, shard), prefill_tokens(run), rows, run.arch.vocab, shard.tp, size,
        every and version(run) < IN_PLACE,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _reserved(
    layers: tuple[Widths, ...], tokens: int, rows: int, vocab: int, ranks: int, size: int,
    copied: bool,
) -> int:  # fmt: skip
    """Play the layers, then the head: logits of `rows` tokens, and perhaps a copy of them."""
    tape, hidden = Tape(), layers[0].hidden if layers else 0
    given, residual = tape.make(tokens * hidden * size), None
    for wide in (wide for wide in layers for _ in range(TURNS)):
        out, rest = _layer(tape, wide, tokens, size)
        tape.free(given, *(() if residual is None else (residual,)))
        given, residual = out, rest
    normed = tape.make(tokens * hidden * size)
    tape.free(given, *(() if residual is None else (residual,)))
    if ranks > 1:
        own = tape.make(rows * int(ceil_div(vocab, ranks)) * size)
        logits = tape.make(rows * vocab * size)
        tape.free(own)
    else:
        logits = tape.make(rows * vocab * size)
    tape.free(normed)
    if copied:
        tape.make(rows * vocab * size)
    tape.free(logits)
    return replay(Stream(sizes=tape.sizes, events=tape.events)).reserved_bytes


def _layer(tape: Tape, wide: Widths, tokens: int, size: int) -> tuple[int, int]:
    """One layer: its output and the residual outlive it."""
    row = tokens * wide.hidden * size
    normed, res = tape.make(row), tape.make(row)
    mixed = tape.make(tokens * wide.mixed * size)
    query, read = tape.make(tokens * wide.read * size), tape.make(tokens * wide.read * size)
    tape.free(query)
    attended = tape.make(row)
    tape.free(mixed, read)
    second, rest = tape.make(row), tape.make(row)
    made = []
    if wide.experts is not None:
        made.append(_experts(tape, wide, tokens, size))
    if wide.up:
        up, act = tape.make(tokens * wide.up * size), tape.make(tokens * wide.act * size)
        gated = wide.up > wide.act
        product = tape.make(tokens * wide.act * size) if gated else act
        tape.free(*((act,) if gated else ()))
        made.append(tape.make(row))
        tape.free(up, product)
    out = made[0] if len(made) == 1 else tape.make(row)
    tape.free(normed, res, attended, second, *(made if len(made) != 1 else ()))
    return out, rest


def _experts(tape: Tape, wide: Widths, tokens: int, size: int) -> int:
    """fused_moe: what goes into the activation, what comes out, and the rows behind, in chunks."""
    assert wide.experts is not None
    rows = min(tokens, CHUNK) * wide.experts.top_k
    logits = tape.make(tokens * wide.experts.count * size)
    caches = [tape.make(rows * width * size)
              for width in (wide.experts.up, wide.experts.act, wide.hidden)]  # fmt: skip
    out = tape.make(tokens * wide.hidden * size)
    tape.free(logits, *caches)
    return out
