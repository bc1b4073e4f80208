"""The figures of a server for the result, from the memory of its ranks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..run.run import Run
from ..run.served import ACTIVATION, GRAPHS, NON_TORCH, WEIGHTS, ServerMemory
from .inference_config import ServingResult

PLACEHOLDER = "MODEL"  # the model in the commands that engines give


def cache_use_note(run: Run, served: Sequence[ServerMemory]) -> Iterator[str]:
    """A sentence on how much of the cache `batch_size` sequences take, where that is given."""
    count = run.options.get("batch_size")
    if count is None or any(one.problem for one in served):
        return
    lengths = run.options.get("prompt_len") or 0, run.options.get("new_tokens") or 0
    context = sum(lengths) or min(one.max_seq_len for one in served)
    most = min(min(int(one.sequences(context)), one.most_sequences) for one in served)
    what = f"{count:,} sequence{'s' * (count > 1)} of {context:,} tokens"
    if most < count:
        yield f"{what}: {most:,} run at once, the others wait"
        return
    share = max(count / one.sequences(context) for one in served)
    yield f"{what} take {100 * share:.1f} % of the cache"


def serving_result(
    served: ServerMemory, address: str = PLACEHOLDER, every: Sequence[ServerMemory] = ()
) -> ServingResult:
    """The result of one rank of a server; `address` is the model's name or path in its command.

    A sequence takes memory on every stage of `every`: the one with the least decides how many
    sequences there are.
    """
    every = every or (served,)
    words = [address if word == PLACEHOLDER else word for word in served.command]
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
    )
