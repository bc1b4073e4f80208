"""What a server's ranks report, as the result has it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..run.run import Run
from ..run.served import ACTIVATION, GRAPHS, NON_TORCH, WEIGHTS, ServerMemory
from .inference_config import ServingResult

PLACEHOLDER = "MODEL"  # the model in the commands that engines give


def asked_for(run: Run, served: Sequence[ServerMemory]) -> Iterator[str]:
    """How much of the cache the sequences take that a run names: a sentence, where it does."""
    count = run.options.get("batch_size")
    if count is None or any(one.problem for one in served):
        return
    lengths = run.options.get("prompt_len") or 0, run.options.get("new_tokens") or 0
    context = sum(lengths) or min(one.max_seq_len for one in served)
    room = min(min(int(one.sequences(context)), one.most_sequences) for one in served)
    what = f"{count:,} sequence{'s' * (count > 1)} of {context:,} tokens"
    if room < count:
        yield f"{what}: {room:,} run at once, the others wait"
        return
    share = max(count / one.sequences(context) for one in served)
    yield f"{what} take {100 * share:.1f} % of the cache"


def serving_result(
    served: ServerMemory, address: str = PLACEHOLDER, every: Sequence[ServerMemory] = ()
) -> ServingResult:
    """What a rank of a server says, as the result has it; `address` is where the model lies.

    A sequence takes room on every stage: the one with least of it decides how many there are.
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
