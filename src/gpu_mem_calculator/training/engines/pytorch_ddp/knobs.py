"""What is worth turning in a run of PyTorch DDP."""

from __future__ import annotations

from ...knob import LAYERS, ON_HOST, POLICY, RECOMPUTES, STEPS, Knob, Offer

KNOBS = (STEPS, *LAYERS, Knob(key=POLICY, kind=RECOMPUTES, savings=(ON_HOST,)))
OFFERS: tuple[Offer, ...] = ()
