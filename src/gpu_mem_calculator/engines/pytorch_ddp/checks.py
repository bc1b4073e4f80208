"""What DDP refuses, one sentence each: the value, the rule, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.run import Run


def problems(run: Run) -> Iterator[str]:
    """One sentence for each option that has no effect: DDP runs anything that one GPU runs."""
    if run.options["gradient_as_bucket_view"] and run.mesh.dp == 1:
        yield "engine.gradient_as_bucket_view=true needs more than one GPU; leave it out"
    if run.options["init_device"] == "meta":
        yield "engine.init_device='meta' is for FSDP, which shards the model; use 'cpu' or 'cuda'"
