"""Every view of the page, and how to see that all of it is there."""

from __future__ import annotations

from .chrome import Visit
from .reading import SERVE, TRAIN

DDP = "pytorch_ddp"
VIEWS = {
    "train": TRAIN,
    "serve": SERVE,
    "compare": f"{TRAIN}|{SERVE.removeprefix('/#')}",
    "plan": f"/plan?model=gpt2&gpus=2&gpu=h200&seq_len=512&global_batch=4&engine={DDP}",
    "accuracy": "/accuracy",
    "docs": "/docs",
}
READY = {"plan": ".plan", "accuracy": "#runs tbody tr", "docs": "#operations details"}


def opened(visit: Visit, view: str) -> Visit:
    """A visit that has opened a view, once all of it is there."""
    visit.open(VIEWS[view], settled=view not in READY)
    visit.page.locator(READY.get(view, ".verdict")).first.wait_for()
    return visit
