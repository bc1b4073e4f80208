"""What DDP refuses, one sentence each: the value, the rule, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator

from ....run.run import Run
from .options import option


def problems(run: Run) -> Iterator[str]:
    """One sentence for each option that has no effect, or is not modelled: DDP runs anything that
    one GPU runs. While gradients are views, rebuilt buckets are copied from the old ones.
    """
    if option(run, "gradient_as_bucket_view") and run.mesh.dp == 1:
        yield "engine.gradient_as_bucket_view=true needs more than one GPU; leave it out"
    elif option(run, "gradient_as_bucket_view") and run.gradients_in_forward:
        order = "training.zero_grad='before_backward'"
        yield f"engine.gradient_as_bucket_view=true is not modelled with {order}; leave one out"
    if option(run, "init_device") == "meta":
        yield "engine.init_device='meta' is for FSDP, which shards the model; use 'cpu' or 'cuda'"
