"""The formula of the textbooks for what a run holds: short, with numbers put in, and its source.

These are the published closed forms of `estimates.published`, for the sizes of the run. They leave
out what their authors left out, so the run's own figure stands beside each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from msgspec import Struct

from ...ledger.ledger import ACT, CACHE, GRAD, OPTIM, PARAM
from ...ledger.units import count, gib
from ...models.arch.blocks import Attention
from ...run.recompute import FULL
from ...training.optimizers import OPTIMIZERS
from ..calculator import Estimate
from ..published.formulas import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    PARAMETER_BYTES,
    Technique,
    korthikanti_layer_bytes,
    kv_cache_bytes,
)
from .worked_formula import is_sharded

ZERO = "Rajbhandari et al., ZeRO, SC20, figure 1 (arXiv 1910.02054)"
KORTHIKANTI = (
    "Korthikanti et al., Reducing Activation Recomputation, MLSys 2023, table 2 (arXiv 2205.05198)"
)
VLLM = "Kwon et al., PagedAttention, SOSP 2023, section 3 (arXiv 2309.06180)"
ADAM_STATES = 2  # momentum and variance
STATES = {PARAM: PARAMETER_BYTES, GRAD: GRADIENT_BYTES, OPTIM: OPTIMIZER_BYTES}
RECOMPUTED: Technique = get_args(Technique)[-1]  # the last row
LAYER: dict[Technique, str] = {
    "none": "{s} × {b} × {h} × (34 + 5 × {a} × {s} / {h})",
    "tensor": "{s} × {b} × {h} × (10 + 24 / {tp} + 5 × {a} × {s} / ({h} × {tp}))",
    "tensor_sequence": "{s} × {b} × {h} × (34 / {tp} + 5 × {a} × {s} / ({h} × {tp}))",
    "tensor_selective": "{s} × {b} × {h} × (10 + 24 / {tp})",
    "tensor_sequence_selective": "34 × {s} × {b} × {h} / {tp}",
    RECOMPUTED: "2 × {s} × {b} × {h}",
}
FLASH = "34 × {s} × {b} × {h}"  # on one tensor-parallel rank, where no scores are kept


class TextbookFormula(Struct, frozen=True, kw_only=True):
    """A published closed form.

    - title: what it is of; kinds: the kinds of memory that this is
    - formula: with letters; numbers: with those of the run; bytes: what it comes to
    - source: who published it
    """

    title: str
    kinds: tuple[str, ...]
    formula: str
    numbers: str
    bytes: int
    source: str


def textbook(estimate: Estimate) -> tuple[TextbookFormula, ...]:
    """The closed forms that hold for a run."""
    if estimate.serves:
        return tuple(_cache(estimate))
    return (*_states(estimate), *_activations(estimate))


def _states(estimate: Estimate) -> Iterator[TextbookFormula]:
    """Parameters, gradients and Adam's states in mixed precision, shared as ZeRO does; weights
    that are all trained.
    """
    run, result = estimate.resolved.run, estimate.result
    row = OPTIMIZERS[run.optimizer]
    adam = row.states == ADAM_STATES and not row.bits
    whole_model = run.adapter is None and run.quantization is None
    if not (adam and whole_model and run.precision.endswith("_mixed")):
        return
    ways, ranks = int(run.mesh.tp) * int(run.mesh.pp), int(run.mesh.dp)
    axes = [axis for axis in ("tp", "pp") if int(getattr(run.mesh, axis)) > 1]
    letters = " / ".join(["P", *axes])
    numbers = count(result.num_parameters) + (f" / {ways}" if ways > 1 else "")
    shared = {kind: ranks > 1 and is_sharded(run.options, kind) for kind in STATES}
    whole = sum(size for kind, size in STATES.items() if not shared[kind])
    split = sum(size for kind, size in STATES.items() if shared[kind])
    terms = [(f"{whole} bytes × {letters}", f"{whole} × {numbers}")] * (whole > 0)
    terms += [(f"{split} bytes × {letters} / dp", f"{split} × {numbers} / {ranks}")] * (split > 0)
    size = round(result.num_parameters / ways * (whole + split / ranks))
    yield TextbookFormula(
        title="parameters, gradients and optimizer states together",
        kinds=tuple(STATES),
        formula=" + ".join(text for text, _ in terms),
        numbers=f"{' + '.join(text for _, text in terms)} = {gib(size, 2)} GiB",
        bytes=size,
        source=ZERO,
    )


def _activations(estimate: Estimate) -> Iterator[TextbookFormula]:
    """What the layers of the busiest stage keep for backward, by table 2 of the paper."""
    run = estimate.resolved.run
    arch, mesh = run.arch, run.mesh
    mixers = [layer.mixers for layer in arch.layers]
    if not all(each and all(isinstance(one, Attention) for one in each) for each in mixers):
        return
    technique, tensor = _technique(estimate), int(mesh.tp)
    sizes = {
        "s": int(run.seq) // int(mesh.cp),
        "b": int(run.batch),
        "h": int(arch.hidden),
        "a": max(1, int(getattr(arch.layers[0].mixers[0], "heads", 1))),
        "tp": tensor,
    }
    layers = estimate.result.stages[estimate.result.busiest_stage].num_layers
    flash = technique == "tensor_sequence_selective" and tensor == 1
    text = FLASH if flash else LAYER[technique]
    size = layers * korthikanti_layer_bytes(
        sizes["s"],
        sizes["b"],
        sizes["h"],
        sizes["a"],
        tensor if technique.startswith("tensor") else 1,
        technique,
    )
    numbers = text.format(**{name: f"{number:,}" for name, number in sizes.items()})
    yield TextbookFormula(
        title="what the layers keep for backward",
        kinds=(ACT,),
        formula=f"L × {text.format(**{name: name for name in sizes})}",
        numbers=f"{layers} × {numbers} = {gib(size, 2)} GiB",
        bytes=size,
        source=KORTHIKANTI,
    )


def _technique(estimate: Estimate) -> Technique:
    """The row of the table: attention that keeps no scores is that of selective recompute."""
    run = estimate.resolved.run
    if run.recompute == FULL:
        return RECOMPUTED
    scores = run.attention == "eager" and run.recompute == "none"
    sequence = bool(run.sequence_parallel)
    rows: dict[tuple[bool, bool], Technique] = {
        (True, True): "tensor_sequence",
        (False, True): "tensor",
        (True, False): "tensor_sequence_selective",
        (False, False): "tensor_selective",
    }
    if scores and int(run.mesh.tp) == 1:
        return "none"
    return rows[sequence or int(run.mesh.tp) == 1, scores]


def _cache(estimate: Estimate) -> Iterator[TextbookFormula]:
    """Keys and values of all tokens that a server's pool holds."""
    run, serving = estimate.resolved.run, estimate.result.serving
    mixers = [mixer for layer in run.arch.layers for mixer in layer.mixers]
    if (
        serving is None
        or not serving.kv_tokens
        or not all(isinstance(m, Attention) for m in mixers)
    ):
        return
    first = mixers[0]
    assert isinstance(first, Attention)
    layers, heads, size = len(mixers), max(1, first.kv_heads // int(run.mesh.tp)), first.head_dim
    layers = layers // int(run.mesh.pp)
    bits = 8 if "8" in str(run.options.get("kv_cache_dtype") or "auto") else 16
    total = kv_cache_bytes(serving.kv_tokens, layers, heads, size, bits)
    yield TextbookFormula(
        title="keys and values of the tokens that fit",
        kinds=(CACHE,),
        formula="2 × L × KV heads × head size × bytes × tokens",
        numbers=f"2 × {layers} × {heads} × {size} × {bits // 8} × {serving.kv_tokens:,} "
        f"= {gib(total, 2)} GiB",
        bytes=total,
        source=VLLM,
    )
