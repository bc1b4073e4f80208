"""The smallest sets of changes with which a server starts and holds the users asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, combinations

from .changes import Server, ServingChange, try_settings
from .moves import (
    Move,
    Step,
    asked_moves,
    batch_moves,
    context_moves,
    format_moves,
    gpu_moves,
    host_moves,
    other_moves,
)

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
    changes = [*found.values(), *alone, *_first(server, on_host)]
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
