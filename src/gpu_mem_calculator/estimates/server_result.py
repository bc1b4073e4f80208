"""The figures of a server for the result, from the memory of its ranks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..run.limits import BoundedLimit
from ..run.run import Run
from ..run.served import ACTIVATION, GRAPHS, NON_TORCH, PLACEHOLDER, WEIGHTS, ServerMemory
from ..runfile.inference_config import ServingResult
from .fit_verdict import FITS, SHORT, headroom_bytes


def users_context(run: Run, served: Sequence[ServerMemory]) -> int:
    """Tokens of one user's sequence: prompt and answer as given, else the longest sequence; where
    its length is the server's choice, at most what the KV cache holds.
    """
    options = run.options
    asked = (options.get("prompt_len") or 0) + (options.get("new_tokens") or 0)
    longest = min(one.max_seq_len for one in served)
    if asked or options.get("max_seq_len"):
        return asked or longest
    return min(longest, *(one.longest_context for one in served)) or longest


def concurrent_users(served: Sequence[ServerMemory], context: int, replicas: int = 1) -> int:
    """Whole sequences of `context` tokens that run concurrently on all replicas."""
    if context > min(one.max_seq_len for one in served):
        return 0
    return replicas * min(min(int(one.sequences(context)), one.most_sequences) for one in served)


def cache_use_note(run: Run, served: Sequence[ServerMemory]) -> Iterator[str]:
    """A sentence on how much of the KV cache the users of `batch_size` take, where they fit."""
    count = run.options.get("batch_size")
    if count is None or any(one.problem for one in served):
        return
    context, replicas = users_context(run, served), int(run.mesh.dp)
    if concurrent_users(served, context, replicas) >= count:
        share = max(count / replicas / one.sequences(context) for one in served)
        users = f"{count:,} user{'s' * (count > 1)} at {context:,} tokens"
        yield f"{users} fill {100 * share:.1f} % of the KV cache"


def serving_result(
    served: ServerMemory,
    address: str = PLACEHOLDER,
    every: Sequence[ServerMemory] = (),
    run: Run | None = None,
    start: Sequence[str] = (),
) -> ServingResult:
    """The result of one rank of a server; `address` is the model's name or path in its command.

    A sequence takes memory on every stage of `every`: the one with the least decides how many
    sequences there are. `run` says how many users are asked for. `start`: the
    words that start it, where another program than the server itself does.
    """
    every = every or (served,)
    words = [address if word == PLACEHOLDER else word for word in start or served.command]
    context = served.max_seq_len if run is None else users_context(run, every)
    replicas = 1 if run is None else int(run.mesh.dp)
    users = 0 if served.problem else concurrent_users(every, context, replicas)
    return ServingResult(
        weights_bytes=served.figure(WEIGHTS),
        activation_bytes=served.figure(ACTIVATION),
        non_torch_bytes=served.figure(NON_TORCH),
        graph_bytes=served.figure(GRAPHS),
        kv_pool_bytes=served.pool_bytes,
        kv_tokens=served.tokens,
        kv_bytes_per_token=served.token_bytes,
        max_seq_len=served.max_seq_len,
        max_concurrency=min(one.sequences(served.max_seq_len) for one in every),
        most_sequences=served.most_sequences,
        longest_context=min(one.longest_context for one in every),
        problem=served.problem,
        command=shlex.join(words),
        users=users,
        users_context=context,
        users_asked=None if run is None else run.options.get("batch_size"),
        replicas=replicas,
        layers_on_gpus=served.layers_on_gpus,
        layers=served.layers,
        partial_layers=served.partial_layers,
        keeps_fewer=served.spills,
    )


def serving_verdict(serving: ServingResult, has_bytes: int, taken_bytes: int) -> str:
    """`fits` where the server starts, takes at most what the card has, and has memory for the users
    that are asked for, else one.
    """
    enough = serving.users >= (serving.users_asked or 1) and taken_bytes <= has_bytes
    return FITS if enough and not serving.problem else SHORT


def excess_limit(
    serving: ServingResult, has_bytes: int, taken_bytes: int
) -> Iterator[BoundedLimit]:
    """Of a server that takes more than the card has, beside its pool: graphs and libraries, which
    are off by half and by more on average (docs/serving.md), so that they could be nothing.
    """
    if not serving.problem and taken_bytes > has_bytes:
        why = "what a server takes beside its pool is more than the card has left, by an estimate"
        most = serving.graph_bytes + serving.non_torch_bytes
        yield BoundedLimit(key="graphs and libraries", why=why, adds_bytes=0, saves_bytes=most)


def serving_headroom(
    serving: ServingResult, served: ServerMemory, has_bytes: int, taken_bytes: int
) -> int:
    """What the card has beyond what is taken, or lacks to start or to hold the users asked for."""
    if serving.problem:
        return headroom_bytes(SHORT, has_bytes - served.needs_bytes)
    asked, each = serving.users_asked or 1, served.sequence_bytes(serving.users_context)
    if serving.users < asked:
        return headroom_bytes(SHORT, served.room_bytes - -(-asked // serving.replicas) * each)
    return headroom_bytes(FITS if taken_bytes <= has_bytes else SHORT, has_bytes - taken_bytes)
