"""The keys that ask whether a number of users at a context fit."""

from __future__ import annotations

from ..run.engine import Engine


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
