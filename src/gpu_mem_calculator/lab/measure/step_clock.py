"""Times steps without probes: one synchronize at the end of each, and nothing between.

The steps after the probed ones are timed. The first of them is not: it begins with what a probe
left behind.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import Any

from .card_state import card_state

TIMED_STEPS = 3


class StepClock:
    """The ends of the steps after the first `probed` ones; `timed` of them are timed."""

    def __init__(self, cuda: Any, probed: int, timed: int = TIMED_STEPS) -> None:
        self.cuda, self.probed, self.timed = cuda, probed, timed
        self.last_phase = ""  # the name of a step's last phase, without the step
        self.ends: list[float] = []
        self.state: dict[str, Any] = {}

    @property
    def steps(self) -> int:
        """The steps that the job runs in all."""
        return self.probed + 1 + self.timed

    def mark(self, name: str) -> bool:
        """Whether the phase is of a step without probes; at the last one of a step, take the time.

        The last phase of a step is known from the probed steps.
        """
        step, _, phase = name.partition(".")
        if not step[1:].isdigit() or int(step[1:]) < self.probed:
            self.last_phase = phase
            return False
        if phase == self.last_phase:
            self.cuda.synchronize()
            self.ends.append(time.perf_counter())
            if len(self.ends) == self.timed + 1:
                self.state = card_state(self.cuda)
        return True

    def measured(self) -> dict[str, Any]:
        """The seconds of each timed step and their median; nothing where none ended."""
        ends = self.ends
        seconds = [round(b - a, 6) for a, b in pairwise(ends)]
        if not seconds:
            return {}
        return {"step_seconds": round(median(seconds), 6), "step_seconds_all": seconds}
