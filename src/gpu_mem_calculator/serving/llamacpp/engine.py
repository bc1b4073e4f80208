"""llama.cpp: layers on GPUs and on the host, a cache of fixed size, buffers planned in advance.

Names of a run file and llama-server's flags:
- `max_seq_len`: -c, the context of all slots together
- `max_num_seqs` or `batch_size`: -np, the slots
- `quantization`: a GGUF file type; `none` means 16-bit weights, and a GGUF file keeps its types

Each GPU has some of the layers, as a pipeline stage does. The formulas of its buffers are for
`infer --explain`; the longest context with which it fits is found by search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from ...ledger.formula import SIMULATED, Formula
from ...ledger.ledger import CPU
from ...ledger.source import code
from ...ledger.units import GIB
from ...models.arch.blocks import LatentAttention
from ...run.cuda.libraries import CONTEXT_SOURCE, HANDLE_SOURCE, context_bytes, handle_bytes
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import ACTIVATION, NON_TORCH, POOL, WEIGHTS, NamedBytes, ServerItem, ServerMemory
from ...run.server_host import ServerHost
from ...run.weights.ggml_types import BLOCKS
from ...run.weights.gguf_types import FILE_TYPES
from ...training.life.loading import PROCESS_BYTES
from .attention_scores import CACHE_KINDS
from .cache import CacheCells, cached_widths, layer_bytes, layer_rows, token_bytes
from .checks import CHECKED, problems
from .command import command
from .fit import fitted
from .layout import (
    CACHE_TYPES,
    POOL_PAGE,
    TILE,
    DeviceBytes,
    ServerLayout,
    device_bytes,
    has_flash,
    is_plain,
    layer_kinds,
    loaded_bytes,
    pool_elements,
)
from .ollama import placed
from .options import (
    OPTIONS,
    build_of,
    fit_rule,
    ollama_release,
    ollama_rule,
    server_layout,
    with_defaults,
)
from .row import ROW
from .versions import LATENT, NEWEST
from .weights import ALL, model_buffers, placed_tensors

STORED = f"{SIMULATED}the tensors in the GGUF file's header"


def weights_formula(layout: ServerLayout, device: int) -> str:
    """Elements of each ggml type × bytes of its blocks."""
    if layout.file.stored:
        return STORED
    places = (*layout.devices.layers, layout.devices.output)
    arguments = (layout.file, places, layout.gpus, layout.moved)
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


STEP = 256  # tokens


def fits(layout: ServerLayout, free: int, outside: int) -> bool:
    """Whether every GPU has enough memory; weights and cache often decide it alone.

    `free`: bytes of each GPU; `outside`: bytes there that no buffer counts (context, handle).
    """
    weights, caches = loaded_bytes(layout)
    if any(weight + cache > free for weight, cache in zip(weights[:-1], caches, strict=False)):
        return False
    used = device_bytes(layout, whole=False)[:-1]
    return all(one.total + (outside if one.total else 0) <= free for one in used)


def longest_context(layout: ServerLayout, free: int, outside: int) -> int:
    """The longest context that fits, up to the model's, in steps of 256; 0 where none does."""
    low, high = 0, max(layout.context, layout.file.arch.max_seq_len) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        fit = fits(replace(layout, context=STEP * middle), free, outside)
        low, high = (middle, high) if fit else (low, middle - 1)
    return STEP * low


WEIGHTS_CODE = code("llama.cpp b10586 src/llama-model.cpp load_tensors")
CACHE_CODE = code(
    "llama.cpp b10586 src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp"
)
COMPUTE_CODE = code(
    "llama.cpp b10586 src/llama-context.cpp sched_reserve, ggml/src/ggml-alloc.c, "
    "ggml-backend.cpp ggml_backend_sched_split_graph"
)
GRAPH = f"{SIMULATED}buffers of ggml's allocator for the graph"
POOL_CODE = code("llama.cpp b10586 ggml/src/ggml-cuda/mmq.cu ggml_cuda_mul_mat_q")


def serve(run: Run) -> ServerMemory:
    """Memory of one GPU of the server: the run's stage is its number."""
    layout, gpu = placed_layout(run), int(run.stage)
    devices = device_bytes(layout)
    buffers, cells = devices[gpu], layout.cells
    on_gpus = enumerate(layout.devices.layers if layout.offload_kqv else ())
    cached = [place for place, device in on_gpus if device == gpu]
    used = buffers.total > 0
    kinds = layer_kinds(layout, gpu if buffers.cache else layout.gpus)  # the host is the last
    needs = buffers.total + (process_bytes(run) if used else 0)
    return ServerMemory(
        items=(*_gpu_items(layout, buffers, gpu), *_host_items(layout, devices[-1])),
        tokens=cells.context,
        token_bytes=token_bytes(run.arch, cached, layout.build, layout.keys, layout.values),
        max_seq_len=cells.sequence,
        most_sequences=cells.slots,
        sequence_bytes=lambda context: _sequence_bytes(layout, kinds, context),
        needs_bytes=needs,
        on_host=devices[-1].cache,
        outside=_outside(run) if used else (),
        problem=_start_problem(needs, gpu, run) if needs > run.free_bytes else "",
        layers_on_gpus=_layers_on_gpus(layout),
        layers=len(layout.devices.layers) + 1,
        partial_layers=_partial_layers(layout),
        spills=layout.gpu_layers < ALL and run.options["n_gpu_layers"] is None,
        host=ServerHost(
            rank_bytes=PROCESS_BYTES,
            file_bytes=sum(one.weights for one in devices[:-1]),  # the others stay in RAM
        ),
        command=tuple(command(run, layout)),
        notes=tuple(_notes(run, layout)),
        largest_context=lambda: longest_context(layout, run.free_bytes, process_bytes(run)),
    )


def _gpu_items(layout: ServerLayout, buffers: DeviceBytes, gpu: int) -> Iterator[ServerItem]:
    setting = layout.setting
    compute = f"{GRAPH} of {setting.tokens:,} tokens, {setting.outputs:,} with logits"
    compute += ", flash attention" if layout.flash else ", scores in fp32"
    weights, cache, pool = (
        partial(formula, layout, gpu) for formula in (weights_formula, cache_formula, pool_formula)
    )
    yield ServerItem(WEIGHTS, "model buffer", buffers.weights, WEIGHTS_CODE, weights)
    yield ServerItem(ACTIVATION, "compute buffer", buffers.compute, COMPUTE_CODE, compute)
    yield ServerItem(POOL, "KV buffer", buffers.cache, CACHE_CODE, cache)
    yield ServerItem(NON_TORCH, "CUDA pool", buffers.pool, POOL_CODE, pool)


def _host_items(layout: ServerLayout, buffers: DeviceBytes) -> Iterator[ServerItem]:
    """The host's buffers, divided by the number of GPUs."""
    host = layout.gpus

    def shared(formula: Callable[[ServerLayout, int], str]) -> Formula:
        return lambda: shared_formula(formula(layout, host), layout.gpus)

    compute = f"{GRAPH}: its inputs, and layers that run there"
    of_weights, of_cache = shared(weights_formula), shared(cache_formula)
    for figure, name, size, source, formula in (
        (WEIGHTS, "model buffer", buffers.weights, WEIGHTS_CODE, of_weights),
        (POOL, "KV buffer", buffers.cache, CACHE_CODE, of_cache),
        (ACTIVATION, "compute buffer", buffers.compute, COMPUTE_CODE, compute),
    ):
        share = size // max(1, layout.gpus)
        if share:
            yield ServerItem(figure, f"{name} of the host", share, source, formula, place=CPU)


def _sequence_bytes(layout: ServerLayout, kinds: tuple[tuple[int, int], ...], context: int) -> int:
    """Bytes of cache that one sequence takes in layers of `kinds`: (first index, number) each."""
    window = min(context, layout.cells.window) if layout.cells.window else 0
    cells = CacheCells(context=context, sequence=context, slots=1, streams=1, window=window)
    types = (layout.build, layout.keys, layout.values)
    arch = layout.file.arch
    return sum(count * layer_bytes(arch, place, cells, *types) for place, count in kinds)


def _outside(run: Run) -> tuple[NamedBytes, ...]:
    context = "CUDA context", context_bytes(run), str(CONTEXT_SOURCE)
    return context, ("cuBLAS handle", handle_bytes(run), str(HANDLE_SOURCE))


def process_bytes(run: Run) -> int:
    """Bytes of a process on a GPU outside its buffers: CUDA's context and the cuBLAS handle."""
    return sum(size for _, size, _ in _outside(run))


def placed_layout(run: Run) -> ServerLayout:
    """The server with the layers and the context that it takes."""
    layout, older = server_layout(run), ollama_rule(run)
    if older is not None:
        return placed(layout, older)
    rule = fit_rule(run, process_bytes(run))
    return layout if rule is None else fitted(layout, rule)


def _layers_on_gpus(layout: ServerLayout) -> int:
    """Layers on GPUs, the output counted as one, as llama.cpp prints it."""
    places = (*layout.devices.layers, layout.devices.output)
    return sum(place != layout.gpus for place in places)


def _partial_layers(layout: ServerLayout) -> int:
    """Layers on GPUs of which some weights are on the host."""
    on_host = {name.split(".")[1] for name, to in layout.devices.moved if to == layout.gpus}
    places = layout.devices.layers
    return sum(str(i) in on_host for i in range(len(places)) if places[i] != layout.gpus)


def _start_problem(needs: int, gpu: int, run: Run) -> str:
    """Which GPU is too small, and what llama.cpp then does by itself."""
    short = f"GPU {gpu} needs {needs / GIB:.1f} GiB; {run.free_bytes / GIB:.1f} GiB available"
    return (
        f"{short}. Use a smaller -c (Ollama: num_ctx), fewer layers (-ngl; num_gpu), a smaller "
        "cache (-ctk, -ctv; OLLAMA_KV_CACHE_TYPE), a smaller quantization or more GPUs."
    )


def _build(run: Run) -> int:
    return build_of(run.options) or NEWEST


def _notes(run: Run, layout: ServerLayout) -> Iterator[str]:
    build = _build(run)
    if build > NEWEST:
        yield f"llama.cpp b{build} is modelled as b{NEWEST}, the newest that is"
    asked = server_layout(run)
    if layout.context != asked.context:
        fits = f"--fit lowers the context from {asked.context:,} to {layout.context:,} tokens"
        yield f"{fits}, because nobody gave -c"
    if layout.flash and not has_flash(layout):
        kernel = f"flash kernel for K {layout.keys}, V {layout.values} and this head size"
        yield f"CUDA has no {kernel}: attention runs on the CPU"
    if run.arch.family not in CHECKED:
        yield (
            f"the compute buffer of {run.arch.family} models follows llama.cpp's general graph; "
            "it was not compared with their own graph"
        )
    latent = any(isinstance(layer.mixer, LatentAttention) for layer, _, _ in run.arch.runs)
    if latent and layout.build < LATENT:
        yield (
            f"b{layout.build} caches keys and values of every head; its compute buffer was not "
            "compared with a log"
        )
    if layout.keys not in CACHE_KINDS:
        yield f"a KV cache in {layout.keys} needs a build with GGML_CUDA_FA_ALL_QUANTS"


def _complete(run: Run) -> Run:
    """The run with the defaults of its release of Ollama."""
    if ollama_release(run.options) is None:
        return run
    return replace(run, options=with_defaults(run))


def stage_layers(run: Run) -> list[int]:
    """The number of layers on each GPU."""
    layout = placed_layout(run)
    return [layout.devices.layers.count(gpu) for gpu in range(layout.gpus)]


ENGINE = Engine(
    name="llamacpp",
    title=ROW.title,
    options=OPTIONS,
    values={
        "quantization": ("none", *map(str.lower, FILE_TYPES)),
        "cache_type_k": CACHE_TYPES,
        "cache_type_v": CACHE_TYPES,
    },
    complete=_complete,
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    stage_layers=stage_layers,
    serve=serve,
)
