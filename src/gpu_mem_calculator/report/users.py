"""How many users a server holds, in words: whole users at a context."""

from __future__ import annotations

from collections.abc import Iterator

from ..estimates.calculator import Estimate
from ..estimates.server_result import concurrent_users

USUAL_CONTEXT = 8192  # tokens; shown beside a longer context of the run


def users_words(users: int, context: int) -> str:
    """Whole users at a context."""
    number = f"{users:,}" if users else "no"
    return f"{number} user{'s' * (users != 1)} at {context:,} tokens"


def users_notes(estimate: Estimate) -> Iterator[str]:
    """The users at a usual context, where that of the run is longer; the tokens of the cache."""
    serving = estimate.result.serving
    if serving is None or serving.problem or not serving.kv_tokens:
        return
    if serving.users_context > USUAL_CONTEXT:
        users = concurrent_users(estimate.served, USUAL_CONTEXT, serving.replicas)
        yield f"{users_words(users, USUAL_CONTEXT).capitalize()}."
    yield f"The KV cache holds {serving.kv_tokens:,} tokens."
