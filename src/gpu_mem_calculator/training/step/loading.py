"""Loading a model onto the GPU: with transformers' from_pretrained, or a quantized base of which
each projection is packed from its weight; and how blocks run a quantized base.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ...ledger.num import EMPTY, Bytes, ceil_div, sized
from ...models.arch.adapters import linears
from ...models.arch.arch import Layer, part_linears
from ...models.arch.blocks import Linear, Weight
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...run.run import Precision, Run
from .weights import is_widened, narrows_biases, quantized_bytes

BLOCK, NESTED = 64, 256  # elements that share a scale; scales that share one
CODE, NESTED_CODE = 16, 256  # fp32 values of a code


def pretrained_events(run: Run, precision: Precision) -> BlockEvents:
    """Events of from_pretrained: one tensor as large as the model is allocated and freed, so that
    the weights, which are loaded by name and packed one by one, lie in its segment.

    transformers 5.17.0 modeling_utils.py caching_allocator_warmup, core_model_loading.py
    convert_and_load_state_dict_in_model (threads, which load other weights, keep the order). PEFT's
    prepare_model_for_kbit_training then makes fp32 copies of the other weights
    (`upcast_unquantized`), by parameter. The first forward casts biases of 4-bit projections back
    (bitsandbytes 0.50.2 nn/modules.py:634); here they are cast at once.
    """
    recorder = EventRecorder()
    packed, biases = _projections(run, "weight"), _projections(run, "bias")
    turned = _projections(run, "weight", transposed=True)
    body = 8 if run.quantization == "int8" else 4
    weights = list(run.arch.weights())
    stored = (_stored(w, body if w.name in packed else precision.weights) for w in weights)
    recorder.over(recorder.work((sum(stored, EMPTY),)))
    left: list[int] = []
    if run.quantization == "nf4" and run.double_quant:
        left.append(recorder.weight(sized(NESTED_CODE, 32)))  # functional.py name2qmap
    loaded: dict[str, int] = {}
    known: dict[tuple[tuple[int, ...], bool], BlockEvents] = {}  # by what decides them
    for weight in sorted(weights, key=lambda one: natural_key(one.name)):
        if weight.name in packed:
            key = weight.shape, weight.name in turned
            if key not in known:
                known[key] = _packing(run, weight, precision, turned=key[1])
            left += recorder.repeat(known[key])
        else:
            loaded[weight.name] = recorder.weight(_stored(weight, precision.weights))
    for weight in weights if run.upcast_unquantized and precision.weights == 16 else ():
        narrow = narrows_biases(run) and weight.name in biases
        for bits in ((32, 16) if narrow else (32,)) if weight.name in loaded else ():
            _recast(recorder, loaded, weight, bits)
    if run.upcast_at_startup and precision.weights == 16:
        _cast_and_back(recorder, run, loaded)
    return recorder.forward_only((*left, *loaded.values()))


def _cast_and_back(recorder: EventRecorder, run: Run, loaded: dict[str, int]) -> None:
    """Upcast embedding, head and norms, then cast them back (Axolotl 067b021 loaders/model.py
    _configure_embedding_dtypes). Of a quantized base, all that is not packed is upcast.
    """
    packed = run.quantization is not None
    for bits in (32, 16):
        for weight in run.arch.weights():
            if weight.name in loaded and (packed or is_widened(weight.name)):
                _recast(recorder, loaded, weight, bits)


def _recast(recorder: EventRecorder, loaded: dict[str, int], weight: Weight, bits: int) -> None:
    """Record that a copy of other bits takes the place of a weight."""
    copy = recorder.weight(_stored(weight, bits))
    recorder.over((loaded[weight.name],))
    loaded[weight.name] = copy


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """The order in which from_pretrained loads names: numbers before words, each part by itself
    (transformers 5.17.0 core_model_loading.py dot_natural_key).
    """
    return [(0, int(part)) if part.isdigit() else (1, part) for part in name.split(".")]


def _projections(run: Run, kind: str, *, transposed: bool = False) -> frozenset[str]:
    """Full names of the weights or biases of packed projections; none without quantization.
    `transposed`: only those that are stored as (in, out).
    """
    if run.quantization is None:
        return frozenset()
    found = (one for layer, _, _ in run.arch.runs for one in linears(layer))
    names = {one.name for one in found if one.transposed or not transposed}
    ends = tuple(f".{name}.{kind}" for name in names)
    return frozenset(w.name for w in run.arch.weights() if w.name.endswith(ends))


def _stored(weight: Weight, bits: int) -> Bytes:
    return sized(weight.numel, bits)


def _packing(run: Run, weight: Weight, precision: Precision, *, turned: bool) -> BlockEvents:
    """Events by which a weight is packed on the GPU; `left` stays.

    bitsandbytes 0.50.2 functional.py quantize_4bit: scales, packed weight, code, the mean of the
    scales, these less their mean, and their own scales, packed values and code. nn/modules.py
    Int8Params._quantize: a copy in fp16, which comes from the host, the scales of rows, the weight.
    `turned`: the weight is transposed first, which 4 bits copy (Params4bit._quantize: contiguous).
    """
    recorder, count = EventRecorder(), weight.numel
    loaded = recorder.work((sized(count, precision.weights),))
    if run.quantization == "int8":
        work = recorder.work((sized(count, 16),))
        tensors = [sized(count // weight.shape[-1], 32), sized(count, 8)]
        stay = [recorder.weight(size) for size in tensors]
    else:
        scales = ceil_div(count, BLOCK)
        loaded += recorder.work((sized(count, precision.weights),)) if turned else []
        work = recorder.work((sized(scales, 32),))
        stay = [recorder.weight(size) for size in (sized(ceil_div(count, 2), 8), sized(CODE, 32))]
        if run.double_quant:
            stay.append(recorder.weight(sized(1, 32)))
            work += recorder.work((sized(scales, 32),))
            nested = (sized(ceil_div(scales, NESTED), 32), sized(scales, 8), sized(NESTED_CODE, 32))
            stay += [recorder.weight(size) for size in nested]
        else:
            stay, work = [*work, *stay], []
    recorder.over((*reversed(work), *loaded))
    return recorder.forward_only(stay)


def quantized_fields(run: Run) -> dict[str, Any]:
    """The fields of a block's setting that are about a quantized base."""
    return {
        "quantization": run.quantization,
        "double_quant": run.quantization == "nf4" and run.double_quant,
        "hopper": run.compute_capability == "9.0",
        "nf4_bits": run.nf4_compute_bits,
        "packed_bits": 32 if run.from_pretrained and not run.precision.endswith("_pure") else 16,
        "bnb_adapters": run.from_pretrained,
        "int8_threshold": run.int8_threshold > 0,
        "int8_outliers": run.int8_outliers,
    }


def loading_events(run: Run, precision: Precision) -> BlockEvents:
    """Events of loading: projections are packed one by one, then the other weights are allocated.

    A 16-bit weight is freed after the loop over its module's projections has allocated the next
    one, and at the loop's end. PEFT's prepare_model_for_kbit_training then makes fp32 copies of the
    other weights (`upcast_unquantized`). The first forward casts biases of 4-bit projections back
    (bitsandbytes 0.50.2 nn/modules.py:634); here they are cast at once.
    """
    recorder = EventRecorder()
    left: list[int] = []
    for layer, equal in groupby(run.arch.layers):
        packing = _layer_packing(run, layer)
        for _ in equal:
            left += recorder.repeat(packing)
    packed = {one.name for layer, _, _ in run.arch.runs for one in linears(layer)}
    weights, biases = (tuple(f".{name}.{kind}" for name in packed) for kind in ("weight", "bias"))
    others = [weight for weight in run.arch.weights() if not weight.name.endswith(weights)]
    loaded = {w.name: recorder.weight(_stored(w, precision.weights)) for w in others}
    for weight in others if run.upcast_unquantized else ():
        narrow = narrows_biases(run) and weight.name.endswith(biases)
        for bits in (32, 16) if narrow else (32,):
            _recast(recorder, loaded, weight, bits)
    for bits in (32, 16) if run.upcast_at_startup else ():
        for weight in others:
            _recast(recorder, loaded, weight, bits)
    return recorder.forward_only((*left, *loaded.values()))


def _layer_packing(run: Run, layer: Layer) -> BlockEvents:
    """Events by which the projections of a layer are packed."""
    recorder = EventRecorder()
    left: list[int] = []
    for part in (layer.mixer, layer.mlp):
        previous: list[int] = []
        for linear in part_linears(part):
            unpacked = [recorder.weight(sized(linear.numel, 16))]
            recorder.over(previous)
            left += _pack_linear(recorder, run, linear)
            previous = unpacked
        recorder.over(previous)
    return recorder.forward_only(left)


def _pack_linear(recorder: EventRecorder, run: Run, linear: Linear) -> list[int]:
    """Record how a projection is packed; the tensors that stay: packed weight, scales, code.

    bitsandbytes 0.50.2: quantize_4bit (functional.py) has the packed weight, fp32 scales, and these
    less their mean, until the scales are packed, too; Int8Params.cuda (nn/modules.py) has an fp16
    copy.
    """
    count = linear.numel
    if run.quantization != "int8" and not run.double_quant:  # scales, weight, code
        sizes = (sized(ceil_div(count, 64), 32), sized(ceil_div(count, 2), 8), sized(16, 32))
        return [recorder.weight(size) for size in sizes]
    body = sized(count if run.quantization == "int8" else ceil_div(count, 2), 8)
    if run.quantization == "int8":
        recorder.over(recorder.work((sized(count, 16),)))
        work = recorder.work((sized(count, 16),))
    else:
        work = recorder.work((sized(ceil_div(count, 64), 32),))
    tensors = [recorder.weight(body)]
    if run.quantization != "int8":
        work += recorder.work((sized(ceil_div(count, 64), 32),))
    tensors.append(recorder.weight(quantized_bytes(run, linear) - body))
    recorder.over(reversed(work))
    return tensors
