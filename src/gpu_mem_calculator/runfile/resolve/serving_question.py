"""The keys that ask whether a number of users at a context fit, and a context that cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...models.arch.arch import Arch
from ...run.engine import Engine
from ...serving import server_row

LENGTH = "inference.prompt_len + new_tokens"


def question_keys(
    engine: Engine, users: int | None = None, context: int | None = None
) -> dict[str, int]:
    """Keys of `inference` for `users` concurrent sequences of `context` tokens each.

    llama.cpp divides its context among the users; transformers takes prompts instead of a limit.
    """
    keys = {} if users is None else {"batch_size": users}
    if context is None:
        return keys
    if engine.serve is None:
        return {**keys, "prompt_len": max(1, context - int(engine.options["new_tokens"]))}
    in_all = context * (users or 1) if "n_parallel" in engine.options else context
    return {**keys, "max_seq_len": in_all}


def length_problems(
    engine: Engine, options: Mapping[str, Any], arch: Arch | None = None
) -> Iterator[str]:
    """A sentence where a sequence is longer than what is set, or than a server takes of this model
    if nothing is; transformers generates beyond it.
    """
    limit = server_row(engine.name).request_limit
    key = limit if options.get(limit) else "max_seq_len"
    most, own = options.get(key), arch.max_seq_len if arch is not None else None
    length = (options.get("prompt_len") or 0) + (options.get("new_tokens") or 0)
    if engine.serve is not None and most is None and own is not None and length > own:
        fix = f"lower them, or set inference.{key} to {length}"
        yield f"{LENGTH} is {length}, more than max_seq_len={own} of the model; {fix}"
    elif most is not None and length > most:
        yield f"{LENGTH} is {length}, more than {key}={most}"
