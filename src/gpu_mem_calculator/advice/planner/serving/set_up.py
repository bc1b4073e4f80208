"""One set-up of a server: how many users its memory holds, and how fast it serves them."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import Struct

from ....estimates.calculator import Estimate, full_estimate, verdict
from ....estimates.fit_verdict import FITS, SHORT
from ....estimates.serving.speed import ANSWER, PROMPT, find_card_rates, on_host, timed_replica
from ....runfile.config import GPUConfig
from ....runfile.resolve.serving_question import question_keys
from ....runfile.text.errors import InputError
from ....serving import server
from ....timing.serving.roofline import first_token_time, requests
from ....timing.serving.seconds import (
    ServingSeconds,
    first_token_seconds,
    prompt_seconds,
    step_seconds,
)
from ..answers.serving_question import ServingQuestion
from .space import ServingSetup

MOST_SLOTS = 64  # of llama.cpp, and the largest batch of transformers that is tried
SLOT_STEPS = (4, 2)  # times more users than before are tried
PREFILL = "prompts of other users"


class Lengths(Struct, frozen=True):
    """Tokens of a user's prompt and answer."""

    prompt: int
    new: int

    @property
    def context(self) -> int:
        """Tokens of the whole sequence."""
        return self.prompt + self.new


class ServedSetup:
    """A server that starts: `copies` of the model, each with room for `most_users` sequences."""

    def __init__(self, setup: ServingSetup, run: dict[str, Any], estimate: Estimate) -> None:
        self.setup, self.run, self.estimate = setup, run, estimate
        resolved = estimate.resolved
        self.copies = int(resolved.run.mesh.dp)
        section = GPUConfig(**run["hardware"])
        card = find_card_rates(section, int(resolved.run.mesh.tp), resolved.hardware.gpus_per_node)
        assert card is not None  # `check_card` has refused others
        self.timed = timed_replica(resolved, section, card)
        self.replica = self.timed.replica
        self.times = cache(self._times)

    def most_users(self, lengths: Lengths) -> int:
        """Sequences that one copy holds at once."""
        served = self.estimate.served
        if not served:  # transformers: as it was asked
            return int(self.estimate.resolved.run.batch)
        context = lengths.context
        return min(min(int(one.sequences(context)), one.most_sequences) for one in served)

    def _times(self, lengths: Lengths, users: int) -> tuple[ServingSeconds, ServingSeconds]:
        """Seconds per output token with `users` sequences on each copy, and to the first token.

        Between two tokens of a user the others' prompts are computed, one for each answer. A pass
        has as many of them as its tokens allow.
        """
        prompt, new = lengths.prompt, lengths.new
        step = step_seconds(self.timed, prompt + new / 2, users)
        first = first_token_seconds(self.timed, prompt)
        together = min(users, max(1, self.timed.chunk // prompt))
        each = prompt_seconds(self.timed, prompt, together)
        share = users / new / together if users > 1 else 0.0  # such passes per output token
        output = ServingSeconds(
            estimate=step.estimate + share * each.estimate,
            low=step.low + share * each.low,
            high=step.high + share * each.high,
            parts={**step.parts, **({PREFILL: share * each.estimate} if share else {})},
        )
        return output, first

    def bound(self, lengths: Lengths, users: int) -> float:
        """The most output tokens per second of one copy, by roofline.

        The chunks of a single user's prompt are in several pipeline stages at once.
        """
        prompt, new, replica = lengths.prompt, lengths.new, self.timed.replica
        if users > 1:
            return users * new / requests(replica, prompt, new, users).seconds
        first = first_token_time(replica.alone, prompt, self.timed.chunk).seconds
        steps = requests(replica.alone, prompt, new, 1, prompted=True).seconds
        return new / (first + steps * (new - 1) / new)


def lengths_of(question: ServingQuestion, longest: int) -> Lengths:
    """Tokens of prompt and answer: as given, else those that `infer` assumes."""
    new = question.new_tokens or min(ANSWER, max(1, (question.context or longest) // 2))
    context = question.context or min(PROMPT + new, longest)
    if context <= new:
        short = f"context={context} leaves no prompt beside new_tokens={new}"
        raise InputError(f"{short}; use at least {new + 1}")
    return Lengths(context - new, new)


def server_run(
    question: ServingQuestion, setup: ServingSetup, lengths: Lengths, users: int | None = None
) -> dict[str, Any]:
    """The run file of a server; `users`: of all its copies."""
    engine = server(setup.engine)
    asked = question_keys(engine, users, lengths.context)
    keys = {**asked, "prompt_len": lengths.prompt, "new_tokens": lengths.new}
    kept = ("num_gpus", "num_nodes", "gpus_per_node")
    hardware = {key: value for key, value in question.hardware.items() if key not in kept}
    if setup.gpus > 1:
        hardware["num_gpus"] = setup.gpus
        per_node = question.hardware.get("gpus_per_node")
        if per_node and setup.gpus % per_node == 0:
            hardware["gpus_per_node"] = per_node
    inference = {"engine": setup.engine, **setup.keys, **keys}
    return {"model": question.model, "inference": inference, "hardware": hardware}


def served_setup(
    question: ServingQuestion, setup: ServingSetup, lengths: Lengths
) -> ServedSetup | None:
    """The set-up, where it starts and holds a user; None where it does not."""
    engine = server(setup.engine)
    if engine.serve is not None and "n_parallel" not in engine.options:
        return _started(question, setup, lengths, None)
    wanted = question.users or MOST_SLOTS  # its memory depends on the users
    users, found = 1, _started(question, setup, lengths, 1)
    while found is not None and users < wanted:
        tried = [min(step * users, wanted) for step in SLOT_STEPS]
        starts = (_started(question, setup, lengths, more) for more in dict.fromkeys(tried))
        more = next((one for one in starts if one is not None), None)
        if more is None:
            break
        found, users = more, more.most_users(lengths)
    return found


def _started(
    question: ServingQuestion, setup: ServingSetup, lengths: Lengths, users: int | None
) -> ServedSetup | None:
    run = server_run(question, setup, lengths, users)
    try:
        found = full_estimate(run, replay=False)
    except InputError:
        return None
    if not _fits(found, run) or next(on_host(found), ""):
        return None
    started = ServedSetup(setup, run, found)
    return started if started.most_users(lengths) else None


def _fits(found: Estimate, run: dict[str, Any]) -> bool:
    """Whether a server starts; with transformers the allocator decides where the ledger cannot."""
    if found.served or found.result.verdict == SHORT:
        return found.result.fits_on_gpu and not found.result.spills
    return verdict(run) == FITS
