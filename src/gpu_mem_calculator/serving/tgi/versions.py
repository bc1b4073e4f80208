"""TGI's version, and the changes between versions."""

from __future__ import annotations

from ...ledger.frameworks import TGI
from ...run.releases import Version, modelled_version
from ...run.run import Run

NEWEST, OLDEST = TGI.numbers, TGI.oldest_numbers
MARLIN = (2, 2, 0)  # AWQ uses Marlin's kernels from here on, from compute capability 8.0 on


def version(run: Run) -> Version:
    """The version that is modelled: the run's, at most the newest."""
    return modelled_version(run, NEWEST)
