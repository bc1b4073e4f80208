"""What the benchmark runs: GPT-lite in sizes of a ladder, and with DeepSpeed's checkpoints."""

from __future__ import annotations

from typing import Any

import gptlite

HEAD = 64  # width of a head, as in GPT-3 Small


def rung(number: int) -> dict[str, int]:
    """The sizes of one rung: as many layers as heads, each head as wide as GPT-3 Small's."""
    return {"n_layer": number, "n_embd": HEAD * number, "n_head": number}


def plain(*, number: int = 12, n_layer: int | None = None, batch_size: int = 1) -> Any:
    """The model of a rung, or fewer layers of it."""
    sizes = rung(number) | ({} if n_layer is None else {"n_layer": n_layer})
    return gptlite.model_and_batch(batch_size=batch_size, **sizes)


def checkpointed(*, number: int = 12, batch_size: int = 1) -> Any:
    """The same with DeepSpeed's checkpoints, one per block, as train.py sets them up."""
    import deepspeed

    model, batch = plain(number=number, batch_size=batch_size)
    deepspeed.checkpointing.configure(
        None,
        partition_activations=True,
        contiguous_checkpointing=True,
        num_checkpoints=len(model.blocks),
    )
    model.checkpoint = deepspeed.checkpointing.checkpoint
    return model, batch
