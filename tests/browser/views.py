"""Every view of the page, and how to see that all of it is there."""

from __future__ import annotations

from .chrome import Visit
from .reading import SERVE, TRAIN

VIEWS = {
    "train": TRAIN,
    "serve": SERVE,
    "compare": f"{TRAIN}|{SERVE.removeprefix('/#')}",
    "accuracy": "/accuracy",
    "docs": "/docs",
}
READY = {"accuracy": "#runs tbody tr", "docs": "#operations details"}


def opened(visit: Visit, view: str) -> Visit:
    """A visit that has opened a view, once all of it is there."""
    visit.open(VIEWS[view], settled=view not in READY)
    visit.page.locator(READY.get(view, ".verdict")).first.wait_for()
    return visit
