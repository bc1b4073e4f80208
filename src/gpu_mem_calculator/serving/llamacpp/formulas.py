"""The formulas of llama.cpp's buffers, for `infer --explain`."""

from __future__ import annotations

from collections import Counter

from ...ledger.formula import SIMULATED
from ...run.weights.ggml_types import BLOCKS
from .cache import cached_widths, layer_bytes, layer_rows
from .layout import POOL_PAGE, TILE, ServerLayout, is_plain, layer_kinds, pool_elements
from .weights import model_buffers, placed_tensors

STORED = f"{SIMULATED}the tensors in the GGUF file's header"


def weights_formula(layout: ServerLayout, device: int) -> str:
    """Elements of each ggml type × bytes of its blocks."""
    if layout.file.stored:
        return STORED
    places = (*layout.devices.layers, layout.devices.output)
    arguments = (layout.file, places, layout.gpus, layout.host_experts)
    elements: Counter[str] = Counter()
    for place, tensor in placed_tensors(*arguments):
        if place == device:
            elements[tensor.kind] += tensor.elements
    total = sum(count // BLOCKS[kind][0] * BLOCKS[kind][1] for kind, count in elements.items())
    terms = [f"{count:,} of {kind} × {_each(kind)}" for kind, count in elements.most_common()]
    return _padded(terms, model_buffers(*arguments)[device] - total)


def cache_formula(layout: ServerLayout, device: int) -> str:
    """Layers × cells × elements of keys and values."""
    arch, cells = layout.file.arch, layout.cells
    types, terms, rest = (layout.build, layout.keys, layout.values), [], 0
    for place, count in layer_kinds(layout, device):
        rows, widths = (
            layer_rows(arch, place, cells),
            cached_widths(arch.layers[place].mixer, *types),
        )
        size = count * layer_bytes(arch, place, cells, *types)
        if not widths:
            terms += [f"{count} layers × {size // count:,} bytes of states"] if size else []
            continue
        for (kind, width), tensors in Counter(widths).items():
            block, each = BLOCKS[kind]
            of_layers = f"{count} layers × {'2 × ' * (tensors > 1)}{rows:,} cells"
            terms.append(f"{of_layers} × {width:,} of {kind} × {_each(kind)}")
            size -= tensors * count * rows * width // block * each
        rest += size
    return _padded(terms, rest)


def pool_formula(layout: ServerLayout, device: int) -> str:
    """The input of the largest matrix product, converted, in whole pages."""
    widest = f"{pool_elements(layout, device):,} elements"
    size = f"{widest} × 2" if is_plain(layout) else f"({widest} × 144 / 128 + {TILE} × 144)"
    return f"ceil({size} / {POOL_PAGE:,}) × {POOL_PAGE:,} bytes"


def shared_formula(formula: str, gpus: int) -> str:
    """A buffer of the host, divided by the number of GPUs."""
    if gpus < 2 or formula.startswith(SIMULATED):
        return formula
    return f"floor(({formula}) / {gpus} GPUs)"


def _each(kind: str) -> str:
    """Bytes of one element."""
    block, size = BLOCKS[kind]
    return f"{size} / {block} bytes" if block > 1 else f"{size} bytes"


def _padded(terms: list[str], padding: int) -> str:
    return " + ".join([*terms, *([f"{padding:,} of padding"] if padding else [])])
