"""Seeds asked in processes of their own, so that one that is killed loses nothing but its seed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait

from tests.questions.asking import ask
from tests.questions.drawing import drawn
from tests.questions.tally import Tally

Work = Callable[[int], Tally]
KILLED = "killed"


def ask_seed(seed: int, count: int, replay: float, limit: int) -> Tally:
    """The tally of a seed's questions."""
    tally = Tally()
    for question in drawn(seed, count, replay):
        tally.count(question, ask(question, limit))
    return tally


def ask_ledgers(seed: int, count: int) -> Tally:
    """The tally of a seed's questions by the ledger alone."""
    from tests.questions.ledgers import ask_many

    return ask_many(seed, count)


def tallies(work: Work, seeds: Iterator[int], workers: int) -> Iterator[Tally]:
    """The tally of each seed as it ends; a seed whose process was killed is a broken law."""
    context = multiprocessing.get_context("fork")
    running: dict[Connection, int] = {}

    def start(seed: int) -> None:
        here, there = context.Pipe(duplex=False)
        context.Process(target=_send, args=(work, seed, there), daemon=True).start()
        there.close()
        running[here] = seed

    for seed in islice(seeds, workers):
        start(seed)
    while running:
        for done in wait(list(running)):
            assert isinstance(done, Connection)
            seed = running.pop(done)
            yield _received(done, seed)
            for following in islice(seeds, 1):
                start(following)


def _send(work: Work, seed: int, there: Connection) -> None:
    there.send(work(seed))


def _received(here: Connection, seed: int) -> Tally:
    try:
        found: Tally = here.recv()
    except EOFError:
        why = f"the process of seed {seed} was killed"
        found = Tally(laws={KILLED: [1, 1]}, failures={KILLED: [(why, "")]})
    here.close()
    return found
