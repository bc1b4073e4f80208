"""What is known of a death: the lines, the stack, the run, and the sizes that they have."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...catalog.variants import variant
from ...estimates.calculator import Estimate
from ...ledger.secrets import hide_long
from ...ledger.units import GIB, MIB
from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...tools.logs.figure import Figure
from ...tools.logs.frames import Frame, Traceback
from ...tools.logs.in_english import in_english
from ...tools.logs.read import SAID, Log, LogLine
from ...tools.read import Asked
from .places import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    GRAPHS,
    LOADING,
    OPTIMIZER_STEP,
    PROFILING,
    SAVING,
    SERVING,
    STARTING,
    Place,
    phase_of_words,
    place,
)
from .programs import programs
from .sizes import PASSES, Explained, by_model, explained

# What the GPU's memory ended with.
OOM = ("torch_oom", "snapshot_oom", "driver_oom", "cublas_failed", "card_oom", "server_oom")
NO_START = ("too_little_free", "no_kv_memory", "kv_too_small", "states_too_few")
NEAR = 40  # lines around a message without a stack, which can be of its code
# A word that can be a model's name, such as Qwen/Qwen2.5-32B-Instruct; the names that are tried.
MODEL = re.compile(r"(?<![\w/.-])(?:[\w-]+/)?[A-Za-z][\w.-]*-\d[\w.]*[bB](?:-[\w.-]+)?(?![\w/])")
MOST_NAMES = 12
OPTION, MOST_OPTIONS = re.compile(r"(?<!\S)--?[a-z]"), 3  # a line with three options is a command
SHORT = (
    20_000  # characters at the begin and the end of a text in which a model's name is looked for
)
PROSE, LONGEST = 24_000, 600  # characters of a text, and of a line, whose words can tell a cause
# What a server does after a line that it prints at its start.
STAGES = {
    "load_begin": LOADING,
    "weights_loaded": PROFILING,
    "graphs_begin": GRAPHS,
    "graphs": SERVING,
    "server_ready": SERVING,
}
TRAINS = re.compile(r"training_step|train_step|^train|_train|_inner_training_loop")
STEPS = (FORWARD, BACKWARD, OPTIMIZER_STEP)
VAGUE = ("", FORWARD, "generation")  # phases of a stack of which a server's last line says more
SECOND = 2
WITHIN_TRAINING = 1.0
"""Percent: 19 of 20 measured runs have less than this between what torch allocated and the estimate
(docs/scored.json, which tests/advice/diagnosis/test_parts.py reads)."""
REDRAWN = 4  # lines behind a message in which a progress bar is drawn for the last time
OTHERS = GIB // 2
"""Bytes of a card that neither torch's process nor free memory accounts for, from which on somebody
else holds them; below it they are the driver's own and rounding."""


class Crash(Struct, frozen=True, kw_only=True, dict=True):
    """A death.

    - `text`: what was given; `log`: what was read of it
    - `estimate`: of the run that died, as it was `asked`; None where it is not known
    - `releases`: the same at two releases; None where only one is known of, or they do the same
    """

    text: str
    log: Log
    estimate: Estimate | None = None
    asked: Asked | None = None
    releases: Any = None

    @cached_property
    def death(self) -> LogLine | None:
        """The message with which the GPU's memory ended: the first, as others follow from it; of
        those on one rank the one that says most.
        """
        found = self.log.of(*OOM) or self.log.of(SAID)
        return max(found, key=lambda one: (len(one.figures), -one.line)) if found else None

    @cached_property
    def is_told(self) -> bool:
        """Whether a program printed that message, or at least a stack."""
        return self.death is not None and (self.death.what != SAID or bool(self.log.tracebacks))

    @property
    def starts_not(self) -> bool:
        """Whether a server says that it does not start for want of memory."""
        return bool(self.log.of(*NO_START))

    @cached_property
    def prose(self) -> str:
        """The text but for commands, of a long one its begin and its end."""
        whole, half = self.text, PROSE // 2
        text = whole if len(whole) <= PROSE else f"{whole[:half]}\n{whole[-half:]}"
        lines = (hide_long(one, LONGEST) for one in text.split("\n"))
        kept = (one for one in lines if len(OPTION.findall(one)) < MOST_OPTIONS)
        return in_english("\n".join(kept))

    @cached_property
    def begin(self) -> str:
        """The begin of the text, with its commands."""
        return in_english(
            "\n".join(hide_long(one, LONGEST) for one in self.text[:PROSE].split("\n"))
        )

    @cached_property
    def stack(self) -> Traceback | None:
        """The stack of that message: the last one before it, else the last one."""
        stacks = self.log.tracebacks
        if not stacks or self.death is None:
            return stacks[-1] if stacks else None
        found, line, counted = stacks[0], 1, 0
        for one in stacks:
            line += self.text.count("\n", counted, one.end)
            counted = one.end
            if line > self.death.line + 1:
                break
            found = one
        return found

    @cached_property
    def place(self) -> Place:
        """Where it died: by the stack, by what a server printed last, by lines of code near it, by
        words of the text.
        """
        found = place(self.stack or self._pasted)
        if self.stack is not None and not (found.phase and found.tensor):
            cut = place(self._pasted)  # a notebook leaves frames out
            found = replace(
                found, phase=found.phase or cut.phase, tensor=found.tensor or cut.tensor
            )
        if found.phase == STARTING and self._counts("step_done", self._at):
            found = replace(found, phase=SAVING)  # a copy of a model that has been trained
        if found.phase in VAGUE and self._stage:
            return replace(found, phase=self._stage)
        words = "" if found.phase not in VAGUE else phase_of_words(self.prose)
        if not found.phase or (words == EVALUATION and not self._trains):
            return replace(found, phase=words or found.phase)
        return found

    @cached_property
    def programs(self) -> tuple[str, ...]:
        """Who printed it, and whether that trains or serves."""
        return programs(self.asked, self.log, self.stack, self.place.phase, self.begin)

    @cached_property
    def _trains(self) -> bool:
        """Whether a frame of the stack is of a training step."""
        return any(TRAINS.search(one.name) for one in (self.stack.frames if self.stack else ()))

    @cached_property
    def _stage(self) -> str:
        """What a server did, by its last line."""
        last = None if self.death is None else self.death.line
        lines = [one for one in self.log.of(*STAGES) if last is None or one.line <= last]
        return STAGES[lines[-1].what] if lines else ""

    @cached_property
    def _pasted(self) -> Traceback | None:
        """The lines around the message, each of which may be one of a stack that was cut."""
        if self.death is None:
            return None
        first, last = max(self.death.line - NEAR, 0), self.death.line + NEAR
        lines = self.text.splitlines()[first:last]
        return Traceback(
            tuple(Frame("", 0, "", hide_long(line, LONGEST).strip()) for line in lines), 0
        )

    def size(self, name: str) -> int | None:
        """A size of the death's message."""
        return None if self.death is None else self.death.bytes_of(name)

    @cached_property
    def card(self) -> int | None:
        """The card's bytes; of a snapshot, which does not say them, what torch has and is free."""
        reserved, free = self.size("reserved"), self.size("free")
        known = None if reserved is None or free is None else reserved + free
        return self.size("total") or known

    @cached_property
    def tried(self) -> Figure | None:
        """What was asked for."""
        found = None if self.death is None else self.death.figures.get("tried_bytes")
        return found if isinstance(found, Figure) else None

    @cached_property
    def explained(self) -> list[Explained]:
        """The tensors of the run that are as large as what was asked for."""
        if self.tried is None or self.estimate is None:
            return []
        return explained(self.tried, self.estimate, self.place.phase)

    @cached_property
    def of_model(self) -> tuple[str, list[Explained]]:
        """Where no run is known, the first model that the text names, and what of it is as large as
        what was asked for.
        """
        if self.tried is None or self.estimate is not None:
            return "", []
        text = f"{self.text[:SHORT]} {self.text[-SHORT:]}"
        for name in dict.fromkeys(MODEL.findall(text)[:MOST_NAMES]):
            found = variant(name)
            if found is not None:
                arch = find_model(ModelConfig(name=found[0]["name"])).arch
                sizes = by_model(self.tried, arch)
                passes = self.place.phase in ("", *PASSES)  # else no token goes through the model
                return found[0]["title"], [one for one in sizes if passes or not one.tokens]
        return "", []

    @cached_property
    def others(self) -> int | None:
        """Bytes of the card that other processes hold; None where the message does not say it."""
        total, free = self.size("total"), self.size("free")
        process, allocated = self.size("process"), self.size("allocated")
        if total is None or free is None or process is None:
            return None
        if allocated is not None and process < allocated:  # the driver does not see this process
            return None
        return max(total - free - process, 0)

    @property
    def when(self) -> str:
        """The phase, with its step where that is known."""
        phase = self.place.phase
        return f"{phase}, step {self.step:,}" if self.step and phase in STEPS else phase

    @cached_property
    def step(self) -> int | None:
        """The step in which it died: the one after the last that was printed, else the second, as
        the first that has the optimizer's states, where it had them.

        A bar is drawn once more when the program ends. Loops that print a step when it is done
        count from 0 or from 1.
        """
        bars = self._counts("step", None if self._at is None else self._at + REDRAWN)
        done = self._counts("step_done", self._at)
        if done:
            return done[-1] + (2 if done[0] == 0 else 1)
        return bars[-1] + 1 if bars else SECOND if self._has_states else None

    @property
    def _at(self) -> int | None:
        """The line of the death's message."""
        return None if self.death is None else self.death.line

    def _counts(self, what: str, last: int | None) -> list[int]:
        """The steps that lines of a kind say, up to a line."""
        lines = [one for one in self.log.of(what) if last is None or one.line <= last]
        figures = [one.figures["step"] for one in lines]
        return [int(one.value) for one in figures if isinstance(one, Figure)]

    @property
    def _has_states(self) -> bool:
        """Whether more was held and asked for than a first step has, which has no states yet."""
        held, tried = self.size("allocated"), self.size("tried")
        if self.estimate is None or self.estimate.serves or held is None or tried is None:
            return False
        if self.place.phase not in (FORWARD, BACKWARD):
            return False
        result = self.estimate.result
        states = result.breakdown.optimizer_states_gb * GIB
        first = (result.allocated_bytes - states) * (1 + WITHIN_TRAINING / 100)
        return states > 0 and held + tried > first


def told(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / GIB:,.2f} GiB" if abs(size) >= GIB else f"{size / MIB:,.0f} MiB"
