"""The verdict on a server, its users, its speed and its changes in words."""

from __future__ import annotations

import re
import shlex

from ...advice.serving.answers import Answers
from ...advice.serving.changes import ServingChange
from ...estimates.calculator import Estimate
from ...estimates.fit_verdict import WORDS
from ...estimates.verdict_words import users_words as users_words
from ...estimates.verdict_words import verdict_line
from ...run.served import checkpoint_note
from ...runfile.inference_config import DecodeSpeed, ServingResult, SpeedResult
from ..lines import Line, command, gib, wrap_lines

COMMON_CONTEXT = 8192  # tokens, at which users are counted beside the longest sequence
OLLAMA_VARIABLES = "the variables are those of `ollama serve`; where it runs, restart it with them"


def verdict_words(estimate: Estimate, answers: Answers | None = None) -> str:
    """The verdict in one line: how many users at which context, or why not."""
    result = estimate.result
    if result.serving is None:
        return _batch_words(estimate, answers)
    return verdict_line(result, _common_users(result.serving, answers))


def _common_users(serving: ServingResult, answers: Answers | None) -> str:
    """Users at a usual context, beside those at the longest."""
    if answers is None or serving.users_asked is not None or serving.problem or not serving.users:
        return ""
    at = {row.context: row.users for row in answers.users}
    common = at.get(COMMON_CONTEXT, 0) if serving.users_context > COMMON_CONTEXT else 0
    return f", {common:,} at {COMMON_CONTEXT:,}" if common else ""


def _batch_words(estimate: Estimate, answers: Answers | None) -> str:
    run, result = estimate.resolved.run, estimate.result
    asked = f"batch {int(run.batch):,} of {int(run.seq):,} + {int(run.generated):,} tokens"
    batch = answers.largest_batch if answers else None
    largest = f"; largest batch {batch:,}" if batch else ""
    word, _, rest = verdict_line(result).partition(": ")
    return f"{word}: {asked} {rest}{largest}"


def speed_words(speed: SpeedResult) -> str:
    """The tokens per second to expect, with their range; the bound without benchmarks."""
    first, *more = (_decode_words(row) for row in speed.decode)
    each = f"at {speed.context:,} tokens{' each' if more else ''}"
    return ", ".join([first.replace(" for ", " tokens/s for ", 1), *more, each])


def _decode_words(row: DecodeSpeed) -> str:
    who = "one user" if row.sequences == 1 else f"{row.sequences:,} users"
    if row.expected is None:
        return f"at most {_rounded(row.tokens_per_second)} for {who}"
    least, most = _rounded(row.expected.least), _rounded(row.expected.most)
    return f"about {_rounded(row.expected.median)} for {who} ({least}–{most})"


def _rounded(rate: float) -> str:
    """A rate with two significant digits."""
    return f"{float(f'{rate:.2g}'):,.0f}" if rate >= 1 else f"{rate:.2g}"


def start_lines(words: str) -> list[Line]:
    """The command that starts a server, and what its user must have first."""
    note = start_note(words)
    return command("start: ", shlex.split(words)) + (wrap_lines("", note) if note else [])


def start_note(words: str) -> str:
    """What the user of a server's command must have or do first; empty where that is nothing."""
    by_ollama = re.match(r"(?:[A-Z_]+=\S+ )+ollama run ", words)
    said = (checkpoint_note(words), OLLAMA_VARIABLES if by_ollama else "")
    return "; ".join(filter(None, said))


def change_gain(estimate: Estimate, change: ServingChange) -> str:
    """What a change brings: users, tokens of KV cache, or memory."""
    if not change.fits:
        return WORDS[change.verdict]
    serving = estimate.result.serving
    if serving is None:
        return f"takes {gib(change.device_bytes)} GiB"
    now = 0 if serving.problem else serving.kv_tokens
    if change.users != serving.users or not now or not estimate.result.figures_fit:
        return users_words(change.users, change.context)
    if change.kv_tokens and change.kv_tokens != now:
        return f"{change.kv_tokens:,} tokens of KV cache, × {change.kv_tokens / now:.2g}"
    return f"takes {gib(change.device_bytes)} GiB per GPU"


def best_changes(estimate: Estimate, answers: Answers) -> list[ServingChange]:
    """The two changes worth trying first: the best on these GPUs, and the best on more of them."""
    gains = answers.remedies or [one for one in answers.what_ifs if _gains(estimate, one)]
    if not answers.remedies:
        gains = sorted(gains, key=lambda one: -_worth(estimate, one))
    now = estimate.resolved.hardware.num_gpus
    same = [one for one in gains if one.gpus <= now]
    more = [one for one in gains if one.gpus > now]
    chosen = [*same[:1], *more[:1]]
    rest = [one for one in gains if one not in chosen]
    return [*chosen, *rest][:2]


def _gains(estimate: Estimate, change: ServingChange) -> bool:
    return change.fits and _worth(estimate, change) > 1.01


def _worth(estimate: Estimate, change: ServingChange) -> float:
    """How many times the KV cache a change brings, or how many times less memory it takes."""
    serving, result = estimate.result.serving, estimate.result
    now = result.allocated_bytes + result.outside_torch_bytes
    if serving is None or change.kv_tokens == serving.kv_tokens:
        more_users = serving is not None and change.users > serving.users
        return 2.0 if more_users else now / max(1, change.device_bytes)
    return change.kv_tokens / max(1, serving.kv_tokens)


def sentence(estimate: Estimate) -> str:
    """The verdict in one sentence, for --check."""
    name, words = estimate.resolved.model.title, verdict_words(estimate)
    return f"{name} {words}".removesuffix(".") + "."
