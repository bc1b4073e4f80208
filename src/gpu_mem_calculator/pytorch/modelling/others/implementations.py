"""Whose modelling code runs a model's layers, where it is not transformers'.

One row for each: the families it has, the norm and the rotary embedding that its code uses, and
where else its memory differs. `model.implementation` of a run file names the row.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.source import Source, code
from ....models.arch.arch import TRANSFORMERS, Arch, Buffer, Layer
from ....models.arch.blocks import Attention, Norm, NormImpl, RotaryImpl
from ..huggingface.quirks import LLAMA, QUIRKS, Quirks

NANOTRON = "nanotron"


class Implementation(Struct, frozen=True, kw_only=True):
    """One project's modelling code.

    - families: model types that it has and that are modelled
    - norm, rotary: the code of its RMS norms and of its rotary embedding
    - quirks: where else its memory differs from Llama's in transformers
    - engines: training engines that its users run it with, or whose parallelism is the same
    - options: the engine's options that it fixes
    - table_bits: of one number of its rotary table; table_per_layer: every layer has a table
    - source: the code that was read
    """

    families: tuple[str, ...]
    engines: tuple[str, ...]
    source: Source
    norm: NormImpl = "rms_fused"
    rotary: RotaryImpl = "half"
    quirks: Quirks = LLAMA
    options: tuple[tuple[str, Any], ...] = ()
    table_bits: int = 32
    table_per_layer: bool = False


IMPLEMENTATIONS: dict[str, Implementation] = {
    "torchtitan": Implementation(
        families=("llama",),
        rotary="complex",
        quirks=Quirks(
            stored_rotary_table=True,
            labels_shifted=True,
            cudnn_first=True,
            embedding_output_unnamed=True,
        ),
        engines=("pytorch_ddp", "fsdp"),
        source=code("torchtitan 0.2.2 models/llama3/model/model.py"),
    ),
    NANOTRON: Implementation(
        families=("llama", "mistral"),
        engines=("megatron_lm",),
        options=(("transformer_implementation", "local"), ("make_vocab_size_divisible_by", 1)),
        table_bits=16,
        table_per_layer=True,
        source=code("nanotron 2411b02 src/nanotron/models/llama.py"),
    ),
}


def implementation_quirks(arch: Arch) -> Quirks:
    """Where the code that runs a model differs in memory from Llama's in transformers."""
    if arch.implementation == TRANSFORMERS:
        return QUIRKS[arch.family]
    return IMPLEMENTATIONS[arch.implementation].quirks


def implemented(arch: Arch, name: str, seq: int) -> Arch:
    """The model in another project's code. `seq`: tokens of a sequence, as many as its rotary table
    has rows (torchtitan models/llama3/model/args.py, update_from_config; flash-attn 2.8.3
    layers/rotary.py, which nanotron calls).
    """
    own = IMPLEMENTATIONS[name]
    made: dict[int, Layer] = {}
    for layer in arch.layers:
        made.setdefault(id(layer), _layer(layer, own))
    mixer = arch.layers[0].mixer
    assert isinstance(mixer, Attention)
    tables = len(arch.layers) if own.table_per_layer else 1
    shape = (tables * seq, mixer.rotary_dim)  # cos and sin, or complex numbers
    table = Buffer("rotary table", shape, bits=own.table_bits)
    return replace(
        arch,
        implementation=name,
        layers=tuple(made[id(layer)] for layer in arch.layers),
        final_norm=arch.final_norm and _norm(arch.final_norm, own),
        buffers=(table,),
    )


def _layer(layer: Layer, own: Implementation) -> Layer:
    assert isinstance(layer.mixer, Attention)
    return replace(
        layer,
        mixer=replace(layer.mixer, rotary_impl=own.rotary),
        norms=tuple((place, _norm(norm, own)) for place, norm in layer.norms),
    )


def _norm(norm: Norm, own: Implementation) -> Norm:
    return replace(norm, impl=own.norm)
