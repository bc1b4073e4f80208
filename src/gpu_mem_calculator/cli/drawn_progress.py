"""The progress of orders of batches that are drawn, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from ..report.terminal import takes_escapes

SECONDS = 2.0  # after which it is shown


@contextmanager
def drawn_progress() -> Iterator[None]:
    """Show how many orders are replayed, where that takes longer than a moment."""
    if not takes_escapes(sys.stderr):
        yield
        return
    from ..estimates.drawn import watched
    from ..report.progress_bar import ERASE_LINE

    begun = monotonic()
    shown = False

    def show(done: int, total: int) -> None:
        nonlocal shown
        if monotonic() - begun > SECONDS:
            shown = True
            sys.stderr.write(f"{ERASE_LINE}batches: order {done + 1} of {total} is replayed")
            sys.stderr.flush()

    try:
        with watched(show):
            yield
    finally:
        if shown:
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()
