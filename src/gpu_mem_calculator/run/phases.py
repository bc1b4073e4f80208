"""The phases of a run: start-up, then forward, backward and optimizer in every step of training, or
prefill and decode in generation. A policy's step may begin with a generation, and any may be
followed by an evaluation and a save.
"""

from __future__ import annotations

STARTUP, FORWARD, BACKWARD, OPTIMIZER = "startup", "forward", "backward", "optimizer"
PREFILL, DECODE = "prefill", "decode"
GENERATION, EVALUATION, SAVING = "generation", "evaluation", "saving"
