"""Which layers Ollama puts on GPUs, and on which: until 0.30 by its own rules, since then by
llama-server's --fit.

Ollama 0.11.0 and v0.12.6 llm/memory.go EstimateGPULayers; v0.13.0 and v0.20.2 llm/server.go
createLayout; fs/ggml/ggml.go VisionGraphSize of all four; v0.9.0 server/sched.go
pickBestFullFitByLibrary. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.remember import remembered
from ...ledger.units import MIB
from ...run.releases import Version
from .cache import layer_bytes
from .layout import ServerLayout, device_bytes
from .ollama_graphs import BY_LAYOUT, GRAPHS, SHARES, graph_sizes
from .ollama_releases import BY_SERVER, family_of, own_engine

OWN_LAYOUT: Version = (0, 12, 0)  # those of its own engine are
TOWER_LAST: Version = (0, 7, 1)  # a vision tower is loaded with the output, before on the first GPU
LAST_FIRST: Version = (0, 7, 0)  # layers are counted from the last one
MINIMUM, ON_METAL = 457 * MIB, 512 * MIB  # of a GPU that nothing may take
# Image size, patch, width and heads of a vision tower.
TOWERS = {"gemma3_text": (896, 14, 1152, 16), "mistral3": (1540, 14, 1024, 16)}


class Placement(Struct, frozen=True, kw_only=True):
    """A release's choice.

    - `layers`: of each GPU, the output counted as one
    - `cache`: of each layer; `partial`, `full`: graphs where some layers and where all are on GPUs
    - `needs`, `all_needs`: what it takes, and what all layers would
    """

    layers: tuple[int, ...]
    cache: tuple[int, ...] = ()
    partial: int = 0
    full: int = 0
    output: int = 0
    needs: int = 0
    all_needs: int = 0


class OllamaRule(Struct, frozen=True, kw_only=True):
    """A release, the memory that each GPU has free, and what was asked for.

    - `requested`: num_gpu; -1: as many layers as fit
    - `slots`: the numbers of requests at once that it tries; empty: the server's is given
    """

    release: Version
    free: tuple[int, ...]
    requested: int = -1
    metal: bool = False
    slots: tuple[int, ...] = ()


def is_counted(family: str, release: Version) -> bool:
    """Whether it is known by what a release places the layers of a family."""
    by_sizes = own_engine(family, release) and release >= OWN_LAYOUT
    return release >= BY_SERVER or by_sizes or family in GRAPHS or family in SHARES


@remembered(32, always=True)
def placement(layout: ServerLayout, rule: OllamaRule) -> Placement:
    """Where a release before 0.30 puts layers."""
    own = own_engine(family_of(layout.file.arch), rule.release)
    if own and rule.release >= OWN_LAYOUT:
        return _measured(layout, rule)
    if rule.release >= BY_LAYOUT:
        return _laid_out(layout, rule)
    return _estimated(layout, rule, own=own)


def placed(layout: ServerLayout, rule: OllamaRule) -> ServerLayout:
    """The server with its layers where a release puts them, and as many slots as it takes: the
    first number of which all layers fit on one GPU, else on all, else the last.
    """
    tries = [_with_slots(layout, slots) for slots in rule.slots] or [layout]
    fits = (
        tried
        for whole in ((False, True) if len(tries) > 1 else ())
        for tried in tries
        if _fits(tried, rule, over_all=whole)
    )
    chosen = next(fits, tries[-1])
    return _with_layers(chosen, placement(chosen, rule).layers)


def _with_slots(layout: ServerLayout, slots: int) -> ServerLayout:
    """The server of one slot with several, each with a context as long."""
    outputs = slots if layout.outputs else 0
    return replace(layout, slots=slots, context=layout.context * slots, outputs=outputs)


def _fits(layout: ServerLayout, rule: OllamaRule, *, over_all: bool) -> bool:
    """Whether a release before 0.10 finds that all layers that are asked for fit, on one GPU or
    `over_all`.
    """
    blocks = _blocks(layout, own=own_engine(family_of(layout.file.arch), rule.release))
    most = max(rule.free)
    made = _counted(layout, rule, blocks, rule.free if over_all else (most,))
    return sum(made.layers) >= _asked(layout, rule)


def _asked(layout: ServerLayout, rule: OllamaRule) -> int:
    """The layers that are to be on GPUs, the output counted as one."""
    return len(layout.file.arch.layers) + 1 if rule.requested < 0 else rule.requested


def _with_layers(layout: ServerLayout, layers: Sequence[int]) -> ServerLayout:
    shares = tuple(map(float, layers)) if len(layers) > 1 and any(layers) else ()
    return replace(layout, gpu_layers=sum(layers), shares=shares)


class _Blocks(Struct, frozen=True):
    """What the rules read of a model's file: bytes of each layer, of the output, and of a vision
    tower, which is loaded with the output.
    """

    layers: tuple[int, ...]
    output: int
    tower: int
    tower_graph: int


def _blocks(layout: ServerLayout, *, own: bool) -> _Blocks:
    arch, layers = layout.file.arch, [0] * len(layout.file.arch.layers)
    ends: dict[str, int] = {}
    for tensor in layout.file.tensors():
        if tensor.name.startswith("blk."):
            layers[tensor.layer] += tensor.bytes
        else:
            head = tensor.name.partition(".")[0]
            ends[head] = ends.get(head, 0) + tensor.bytes
    output = ends.get("output_norm", 0) + ends.get("output", ends.get("token_embd", 0))
    seen, graph = own and arch.tower_parameters > 0, 0
    if seen and family_of(arch) in TOWERS:  # the others' is 0 in VisionGraphSize
        image, patch, width, heads = TOWERS[family_of(arch)]
        graph = 4 * (image**2 * 3 + width * patch + (image // patch) ** 4 * heads)
    return _Blocks(tuple(layers), output, arch.tower_parameters * 2 if seen else 0, graph)


def _estimated(layout: ServerLayout, rule: OllamaRule, *, own: bool) -> Placement:
    """Layers counted one by one while an estimate of their sum fits: on one GPU if all do, else on
    all in turn.
    """
    count = partial(_counted, layout, rule, _blocks(layout, own=own))
    free = sorted(rule.free, reverse=True)
    alone = [count((one,)) for one in free]
    for i, one in enumerate(alone):
        if sum(one.layers) >= _asked(layout, rule):
            return replace(one, layers=tuple(one.layers[0] * (i == k) for k in range(len(free))))
    return alone[0] if len(free) == 1 else count(rule.free)


def _counted(
    layout: ServerLayout, rule: OllamaRule, blocks: _Blocks, free: Sequence[int]
) -> Placement:
    cache, part, full = graph_sizes(layout, rule.release)
    if rule.metal:
        part = full
    elif len(free) > 1:
        full = part
    graph, minimum = max(part, full), ON_METAL if rule.metal else MINIMUM
    each = [size + kv for size, kv in zip(blocks.layers, cache, strict=True)]
    tower = blocks.tower + blocks.tower_graph
    on_first = tower if rule.release < TOWER_LAST else 0
    room: list[int] = []
    for i, one in enumerate(free):  # the tower counts until a GPU has been found for it
        if one >= graph + minimum + 2 * each[0] + (0 if room else on_first):
            room.append(i)
    taken = [minimum + each[0] if i in room else 0 for i in range(len(free))]
    layers, overflow = [0] * len(free), 0 if room else on_first
    if room:
        taken[room[0]] += on_first
    order = range(len(each))

    def put(size: int, place: int) -> bool:
        for j in range(len(room), 0, -1):
            gpu = room[place % j]
            if free[gpu] > taken[gpu] + graph + size:
                taken[gpu] += size
                layers[gpu] += 1
                return True
            del room[place % j]
        return False

    for i in reversed(order) if rule.release >= LAST_FIRST else order:
        if 0 <= rule.requested <= sum(layers) or not put(each[i], i):
            overflow += each[i]
    if rule.release < LAST_FIRST:  # the others count as large as the last one
        overflow = (len(each) - sum(layers)) * each[-1]
    whole = sum(layers) >= len(each)
    last = blocks.output + (tower if rule.release >= TOWER_LAST else 0)
    if not (rule.requested < 0 or sum(layers) < rule.requested) or not put(last, sum(layers)):
        whole, overflow = False, overflow + last
    used = sum(taken) + (full if whole else part) * sum(one > 0 for one in layers)
    return Placement(
        layers=tuple(layers),
        cache=cache,
        partial=part,
        full=full,
        output=blocks.output,
        needs=used,
        all_needs=used + overflow,
    )


def _laid_out(layout: ServerLayout, rule: OllamaRule) -> Placement:
    """Layers of llama.cpp's runner: packed from the last one on, into as few GPUs as hold all."""
    blocks, (cache, part, full) = _blocks(layout, own=False), graph_sizes(layout, rule.release)
    part = full if rule.metal else part
    each = [*(size + kv for size, kv in zip(blocks.layers, cache, strict=True)), blocks.output]
    graph, kept = max(part, full), each[0]
    used, found = 0, list[int]()
    while True:
        graphs = [graph if i < used else 0 for i in range(len(rule.free))]
        found = _packed(each, _room(rule, [one + kept for one in graphs]), rule, max(used - 1, 0))
        if sum(one > 0 for one in found) <= used:
            break
        used = sum(one > 0 for one in found)
    return Placement(
        layers=tuple(found), cache=cache, partial=part, full=full, output=blocks.output
    )


def _measured(layout: ServerLayout, rule: OllamaRule) -> Placement:
    """Layers of Ollama's own engine: packed by the sizes that its buffers had in the try before,
    until a choice comes again.
    """
    every = len(layout.file.arch.layers) + 1
    gpus, seen = len(rule.free), set[tuple[int, ...]]()
    found, graphs, used = (every, *[0] * (gpus - 1)), [0] * gpus, 0
    while found not in seen:
        seen.add(found)
        tried = _with_layers(layout, found)
        devices = device_bytes(tried, whole=False)
        graphs = [max(one.compute, old) for one, old in zip(devices, graphs, strict=False)]
        used = max(used, max((i for i in range(gpus) if found[i]), default=0))
        made = tuple(_packed(_sizes(layout), _room(rule, graphs), rule, used))
        if sum(made) > sum(found):
            break
        found = made
    return Placement(layers=found)


def _sizes(layout: ServerLayout) -> list[int]:
    """Bytes of each layer with its cache, the output's last."""
    blocks, arch = _blocks(layout, own=True), layout.file.arch
    types = (layout.build, layout.keys, layout.values)
    cache = [layer_bytes(arch, i, layout.cells, *types) for i in range(len(arch.layers))]
    layers = [size + kv for size, kv in zip(blocks.layers, cache, strict=True)]
    return [*layers, blocks.output + blocks.tower]


def _room(rule: OllamaRule, taken: Sequence[int]) -> list[int]:
    """What each GPU has for layers."""
    minimum = ON_METAL if rule.metal else MINIMUM
    pairs = zip(rule.free, taken, strict=True)
    return [max(free - minimum - one, 0) for free, one in pairs]


def _packed(each: Sequence[int], room: Sequence[int], rule: OllamaRule, used: int) -> list[int]:
    """Layers of each GPU (assignLayers): on as few as hold all, the output left out where that
    does not help.
    """
    found: list[int] = []
    for sizes in (each, each[:-1]):
        asked = min(len(sizes), rule.requested)
        for count in range(used + 1, len(room) + 1):
            found = _best_fit(sizes, room[:count], asked, last=count == len(room))
            if sum(found) in (len(sizes), asked):
                break
        if sum(found) == len(sizes):
            break
    return [*found, *[0] * (len(room) - len(found))]


def _best_fit(sizes: Sequence[int], room: Sequence[int], asked: int, *, last: bool) -> list[int]:
    """The most layers, with the least share of every GPU that holds them (findBestFit)."""
    low, high = 0.0, 1000.0 if asked >= 0 and last else 1.0
    best = most = _greedy(sizes, room, high, asked)
    while high - low > 1e-6:
        middle = (low + high) / 2
        found = _greedy(sizes, room, middle, asked)
        if sum(found) == sum(most):
            high, best = middle, found
        else:
            low = middle
    return best


def _greedy(sizes: Sequence[int], room: Sequence[int], share: float, asked: int) -> list[int]:
    """Layers from the last one on, into the last GPU first."""
    found, gpu = [0] * len(room), len(room) - 1
    free = int(room[gpu] * share)
    for place, size in enumerate(reversed(sizes)):
        if 0 <= asked <= place:
            break
        while size > free:
            gpu -= 1
            if gpu < 0:
                return found
            free = int(room[gpu] * share)
        found[gpu] += 1
        free -= size
    return found
