"""What a run recomputes, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..run.recompute import EVERY_SECOND_MM
from ..run.run import Run

# Of the layers, in quarters.
SHARES = {2: " on half of the layers", 3: " on three quarters of the layers", 4: ""}


def recompute_words(run: Run) -> Iterator[str]:
    """The run's recompute policy; nothing where there is none."""
    rule = run.rule
    if run.recompute == "full":
        yield f"full recompute{SHARES[run.recompute_quarters]}{_which(run)}"
        if rule.offload:
            yield "layer inputs in host RAM"
    elif run.recompute == "op":
        kept = "attention and every second matmul" if EVERY_SECOND_MM in rule.keeps else "attention"
        yield f"recompute by operation, {kept} kept"
    elif run.recompute != "none":
        yield f"recompute of {', '.join(rule.modules)}" if rule.modules else "selective recompute"


def _which(run: Run) -> str:
    """Which layers full recompute applies to, where a rule says it."""
    rule = run.rule
    if rule.every > 1:
        return f" on one of {rule.every} layers"
    if rule.first_layers is not None:
        return f" on the first {rule.first_layers} layers of each stage"
    return f", {rule.layers_together} layers at a time" if rule.layers_together > 1 else ""
