"""The KV cache of one token as a formula: layers × heads × head size × bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...ledger.formula import bytes_each
from ...models.arch.blocks import Attention, LatentAttention
from ...run.run import Run
from ..calculator import Estimate


def token_formula(estimate: Estimate) -> str:
    """The bytes of one token on one rank of the busiest stage, and how they are computed.

    A server may pad its rows, or keep some layers' tokens elsewhere. Where the plain product is not
    the server's figure, the figure stands alone. "" for a run without a server's pool.
    """
    if not estimate.served:
        return ""
    stage = estimate.result.busiest_stage
    size = estimate.served[stage].token_bytes
    if not size:
        return ""
    found = (text for text, value in _candidates(estimate, stage) if value == size)
    text = next(found, "in all layers of this rank")
    return f"{text} = {size:,} bytes" if "×" in text else f"{size:,} bytes {text}"


def _candidates(estimate: Estimate, stage: int) -> Iterator[tuple[str, int]]:
    """Formulas and their values: with every layer, and without those that have a window."""
    run, places = estimate.resolved.run, _places(estimate, stage)
    full = [p for p in places if not (run.arch.windows and run.arch.windows[p])]
    dtype = str(run.options.get("kv_cache_dtype") or "auto")
    bits = 8 if "8" in dtype else 32 if run.precision == "fp32" else 16
    for ranks in {
        int(run.mesh.tp): None,
        max(1, int(run.mesh.tp) // max(1, int(run.mesh.dp))): None,
    }:
        for chosen in (places, full):
            yield _formula(run, chosen, ranks, bits)


def _places(estimate: Estimate, stage: int) -> range:
    """The layers of a pipeline stage."""
    run, engine = estimate.resolved.run, estimate.resolved.engine
    if len(estimate.served) == 1:
        return range(len(run.arch.layers))
    assert engine.stage_layers is not None  # an engine with stages has it
    counts = engine.stage_layers(run)
    return range(sum(counts[:stage]), sum(counts[: stage + 1]))


def _formula(run: Run, places: range | list[int], ranks: int, bits: int) -> tuple[str, int]:
    """The sum over layers, equal ones together; keys and values, or one latent of both."""
    widths: Counter[tuple[str, int]] = Counter()
    for place in places:
        for mixer in run.arch.layers[place].mixers:
            if isinstance(mixer, Attention):
                heads, value = max(1, mixer.kv_heads // ranks), mixer.value_dim or mixer.head_dim
                key = mixer.head_dim
                size = f"2 × {heads} KV heads × {key}"
                if value != key:
                    size = f"{heads} KV heads × ({key} of a key + {value} of a value)"
                widths[size, heads * (key + value)] += 1
            elif isinstance(mixer, LatentAttention):
                size = f"({mixer.kv_rank} of the latent + {mixer.rope_dim} rotary)"
                widths[size, mixer.kv_rank + mixer.rope_dim] += 1
    terms = [f"{count} layers × {size}" for (size, _), count in widths.items()]
    text = " + ".join(terms) if len(terms) == 1 else f"({' + '.join(terms)})"
    elements = sum(width * count for (_, width), count in widths.items())
    return f"{text} × {bytes_each(bits)}", elements * bits // 8
