"""The smallest sets of changes with which a server starts and holds the users asked for.

Changes with which a server may fit: smaller formats, shorter contexts, more GPUs, and others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, combinations, islice, product

from msgspec import Struct

from ...estimates.fit_verdict import FITS
from ...estimates.node import MARGIN
from ...ledger.units import GIB
from ...models.arch.blocks import Moe
from ...runfile.resolve.serving_split import DATA, shards_layers
from ...serving import OF_GGUF, USUAL
from ...serving import server as find_engine
from .changes import Server, ServingChange, gpu_settings, gpus_title, try_settings

LEAST_CONTEXT = 2048  # tokens; a shorter context is no answer
MOST_GPUS = 256
SLOTS = "slots"
MOST_SPLITS = 2  # of one number of GPUs that are tried
COUNTS_BY_LAYER = (1, 2, 3, 4, 6, 8, 12, 16)
KEPT = ("gpu", "num_gpus")
LARGER_CARDS = ("h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm")


class Step(Struct, frozen=True):
    """One value of a change."""

    title: str
    settings: tuple[str, ...]


class Move(Struct, frozen=True):
    """A change along one axis: its first step that fits is taken; later ones fit too."""

    axis: str
    steps: tuple[Step, ...]
    cost: str


def format_moves(server: Server) -> Iterator[Move]:
    """Smaller formats and limits."""
    asked = "batch_size" in server.estimate.result.run["inference"]
    for one in server.formats():
        if one.axis == SLOTS and asked:
            continue
        yield Move(one.axis, (Step(one.title, (one.setting,)),), one.cost)


def asked_moves(server: Server) -> Iterator[Move]:
    """More slots, where the users asked for are more than the server runs."""
    serving = server.estimate.result.serving
    if serving and serving.users_asked and serving.users_asked > serving.most_sequences:
        slots = -(-serving.users_asked // serving.replicas)
        if "max_num_seqs" in server.estimate.resolved.engine.options:
            step = Step(f"max_num_seqs {slots:,}", (f"inference.max_num_seqs={slots}",))
            yield Move(SLOTS, (step,), "larger batches")


def context_moves(server: Server) -> Iterator[Move]:
    """Shorter contexts, powers of two; shorter prompts with transformers. None where the context is
    part of the question.
    """
    given = server.estimate.result.run["inference"]
    if "batch_size" in given and {"max_seq_len", "prompt_len"} & set(given):
        return
    resolved, run = server.estimate.resolved, server.estimate.resolved.run
    if resolved.engine.serve is None:
        longest, key, new = int(run.seq), "prompt_len", 0
    else:
        longest, key = server.estimate.served[0].max_seq_len, "max_seq_len"
        new = (run.options.get("prompt_len") or 0) + (run.options.get("new_tokens") or 0)
    lengths = [2**power for power in range(20, 10, -1)]
    steps = tuple(
        Step(f"{length:,} tokens", (f"inference.{key}={length}",))
        for length in lengths
        if max(LEAST_CONTEXT, new) <= length < longest
    )
    if steps:
        yield Move("context", steps, "shorter sequences")


def host_moves(server: Server) -> Iterator[Move]:
    """llama.cpp's layers or experts in host memory."""
    run = server.estimate.resolved.run
    if "n_gpu_layers" not in run.options or server.estimate.result.spills:
        return
    layers = len(run.arch.layers)
    if run.options.get("n_cpu_moe") is None and any(
        isinstance(layer.mlp, Moe) for layer in run.arch.layers
    ):
        steps = (
            Step(f"experts of {n} layers on the host", (f"inference.n_cpu_moe={n}",))
            for n in range(1, layers + 1)
        )
        yield Move("host", tuple(steps), "much slower: the CPU computes them")
    if run.options.get("n_gpu_layers") is None:
        steps = (
            Step(f"{n} of {layers + 1} layers on the GPU", (f"inference.n_gpu_layers={n}",))
            for n in range(layers, -1, -1)
        )
        yield Move("host", tuple(steps), "much slower: the CPU computes the others")


def batch_moves(server: Server) -> Iterator[Move]:
    """Smaller batches with transformers."""
    batch = int(server.estimate.resolved.run.batch)
    if server.estimate.resolved.engine.serve is None and batch > 1:
        sizes = (batch >> power for power in range(1, batch.bit_length()))
        steps = tuple(Step(f"batch {size}", (f"inference.batch_size={size}",)) for size in sizes)
        yield Move("batch", steps, "fewer concurrent users")


def gpu_moves(server: Server) -> Iterator[tuple[int, Move]]:
    """More GPUs, fewest first, with how many of one replica there are; then more replicas.

    Left out are counts whose GPUs cannot hold the weights.
    """
    resolved, ranks, serving = (
        server.estimate.resolved,
        server.ranks,
        server.estimate.result.serving,
    )
    counts = [2**power for power in range(MOST_GPUS.bit_length())]
    if not shards_layers(resolved.engine):
        counts = list(COUNTS_BY_LAYER)
    weights = 0 if serving is None else serving.weights_bytes * ranks
    for count in counts:
        if count <= ranks or weights / count > resolved.hardware.memory_bytes:
            continue
        for settings in islice(gpu_settings(server, count), MOST_SPLITS):
            yield count, Move("gpus", (Step(gpus_title(count), settings),), "more GPUs")
        if serving is not None and not serving.problem and count % ranks == 0:
            yield from ((count, move) for move in _replicas(server, count))


def _replicas(server: Server, count: int) -> Iterator[Move]:
    """As many replicas as `count` GPUs hold."""
    if server.has_option(DATA):
        replicas = count // server.ranks
        settings = [f"inference.{DATA}={replicas}"]
        if "num_gpus" in server.estimate.result.run.get("hardware", {}):
            settings.append(f"hardware.num_gpus={count}")
        yield Move("gpus", (Step(f"{replicas} replicas", tuple(settings)),), "more GPUs")


def other_moves(server: Server) -> Iterator[Move]:
    """What is left where nothing else fits: another engine, other GPUs, then both."""
    here = server.estimate.resolved.engine.name
    engines = [name for name in (USUAL, OF_GGUF) if name != here]
    for name in engines:
        for count in (2**power for power in range(7)):
            title = f"{find_engine(name).title} on {gpus_title(count)}"
            settings = (*_to_engine(server, name), f"hardware.num_gpus={count}")
            yield Move("other", (Step(title, settings),), "another engine")
    for name in (here, *engines[:1]):
        for card, count in product(LARGER_CARDS, (1, 2, 4, 8, 16, 32)):
            title = f"{count} × {card}"
            title = title if name == here else f"{find_engine(name).title} on {title}"
            changed = () if name == here else _to_engine(server, name)
            settings = (*changed, *_to_card(server, card, count))
            yield Move("other", (Step(title, settings),), "other GPUs")


def _to_engine(server: Server, name: str) -> tuple[str, ...]:
    """Settings that change the engine, without the keys that the new one lacks."""
    unknown = set(server.estimate.result.run["inference"]) - {"engine", *find_engine(name).options}
    dropped = (f"inference.{key}=null" for key in sorted(unknown))
    return (f"inference.engine={name}", *dropped)


def _to_card(server: Server, card: str, count: int) -> tuple[str, ...]:
    """Settings that change the GPUs, and leave the parallel sizes to them."""
    given = server.estimate.result.run
    sizes = [f"hardware.{k}=null" for k in given.get("hardware", {}) if k not in KEPT]
    return (f"hardware.gpu={card}", f"hardware.num_gpus={count}", *sizes, *_no_sizes(given))


def _no_sizes(given: dict[str, dict[str, object]]) -> Iterator[str]:
    for axis in ("tensor", "pipeline", "data", "expert"):
        if f"{axis}_parallel_size" in given["inference"]:
            yield f"inference.{axis}_parallel_size=null"


def node_moves(server: Server) -> Iterator[Move]:
    """A larger limit of host RAM, where that alone is too small: as much as is certain to suffice,
    in whole GiB.
    """
    host = server.estimate.result.host
    if host is None or not host.node_bytes or host.verdict == FITS:
        return
    needs = -(-int(host.bytes_per_node * (1 + MARGIN) + 2**26) // GIB)
    name = host.read_from.partition("=")[0] or "--node-ram"
    title = f"{needs} GiB of {'memory' if host.shared else 'host RAM'} ({name})"
    settings = (f"hardware.node_memory_gb={needs}", "hardware.node_memory_read_from=null")
    yield Move("node", (Step(title, settings),), "")


MOST = 5  # remedies that keep the GPUs, or have fewer than suffice alone
MOST_CHANGES = 3  # of one remedy
USEFUL_CONTEXT = 8192  # tokens; remedies with a shorter context come later


def remedies(server: Server) -> list[ServingChange]:
    """Sets of one to three changes that fit, the smallest first; none contains another one.

    The fewest GPUs that suffice alone are one of them. Where nothing fits on these GPUs, layers in
    host memory; where nothing at all, the first of other engines and other GPUs that fits.
    """
    alone, fewer = _fewest_gpus(server)
    moves = [move for move in _moves(server) if not _last_steps(server, (move,)).problem]
    found: dict[frozenset[Move], ServingChange] = {}
    for chosen in chain(_sets(server, moves, []), _sets(server, moves, fewer) if fewer else ()):
        if len(found) < MOST and not any(smaller <= set(chosen) for smaller in found):
            change = first_fitting(server, chosen)
            if change is not None:
                found[frozenset(chosen)] = change
    now = server.estimate.resolved.hardware.num_gpus
    on_host = [] if any(one.gpus == now for one in found.values()) else host_moves(server)
    changes = [*_first(server, node_moves(server)), *found.values(), *alone]
    changes += _first(server, on_host)
    return sorted(changes or _other(server), key=_smallness)


def _other(server: Server) -> list[ServingChange]:
    """The first other engine or GPUs that fit, with a shorter context where they do not alone."""
    alone = list(_first(server, other_moves(server)))
    contexts = list(context_moves(server))
    if alone or not contexts:
        return alone
    for move in other_moves(server):
        change = first_fitting(server, (move, *contexts))
        if change is not None:
            return [change]
    return []


def _smallness(change: ServingChange) -> tuple[int, int, bool]:
    """Sort key: the fewest changes, the fewest GPUs, a context that is long enough to work with."""
    return len(change.changes), change.gpus, change.context < USEFUL_CONTEXT


def _moves(server: Server) -> Iterator[Move]:
    """Changes that keep the number of GPUs."""
    every = (asked_moves, format_moves, batch_moves, context_moves)
    return chain.from_iterable(moves(server) for moves in every)


def _fewest_gpus(server: Server) -> tuple[list[ServingChange], list[Move]]:
    """The fewest GPUs that suffice alone; and moves to fewer, which may suffice with others."""
    fewer: dict[int, Move] = {}
    for count, move in gpu_moves(server):
        change = first_fitting(server, (move,))
        if change is not None:
            return [change], [one for number, one in fewer.items() if number < count][-1:]
        fewer.setdefault(count, move)
    return [], list(fewer.values())[-1:]


def _first(server: Server, moves: Iterable[Move]) -> Iterator[ServingChange]:
    """The first of the moves that fits."""
    for move in moves:
        change = first_fitting(server, (move,))
        if change is not None:
            yield change
            return


def _sets(server: Server, moves: list[Move], gpus: list[Move]) -> Iterator[tuple[Move, ...]]:
    """Sets of moves along different axes, the smallest first, each with all moves of `gpus`.

    There are none where not even all changes together fit.
    """
    every = tuple({move.axis: move for move in moves}.values())
    if not _serves(_last_steps(server, (*every, *gpus))):
        return
    for number in range(1, MOST_CHANGES + 1 - len(gpus)):
        for chosen in filter(_compatible, combinations(moves, number)):
            yield (*chosen, *gpus)


def _compatible(chosen: tuple[Move, ...]) -> bool:
    axes = {move.axis for move in chosen}
    return len(axes) == len(chosen) and sum(len(move.steps) > 1 for move in chosen) <= 1


def first_fitting(server: Server, chosen: tuple[Move, ...]) -> ServingChange | None:
    """The change with the first steps that fit; None where the last steps do not fit either.

    One of the moves at most has several steps; they are searched by bisection.
    """
    last = _last_steps(server, chosen)
    searched = next((i for i, move in enumerate(chosen) if len(move.steps) > 1), None)
    if not _serves(last) or searched is None:
        return last if _serves(last) else None
    steps, best = chosen[searched].steps, last
    low, high = 0, len(steps) - 1  # steps[high] fits
    while low < high:
        middle = (low + high) // 2
        picked = [move.steps[-1] for move in chosen]
        picked[searched] = steps[middle]
        change = _tried(server, chosen, picked)
        low, high, best = (low, middle, change) if _serves(change) else (middle + 1, high, best)
    return best


def _serves(change: ServingChange) -> bool:
    """Whether the server then fits and serves a whole user."""
    return change.fits and change.users > 0


def _last_steps(server: Server, chosen: tuple[Move, ...]) -> ServingChange:
    return _tried(server, chosen, [move.steps[-1] for move in chosen])


def _tried(server: Server, chosen: tuple[Move, ...], steps: list[Step]) -> ServingChange:
    titles = tuple(step.title for step in steps)
    settings = tuple(setting for step in steps for setting in step.settings)
    costs = dict.fromkeys(move.cost for move in chosen)
    return try_settings(server, " + ".join(titles), settings, changes=titles, cost="; ".join(costs))
