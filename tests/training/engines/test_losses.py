"""Ledger and stream of runs with other losses and Liger's kernels are equally high."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA, small_run
from tests.streams import highest, rolled_and_written

LOSSES = (
    "full_no_upcast",
    "flash_fused",
    "flash_fused_inplace",
    "flash_fused_no_upcast",
    "liger",
    "liger_fused",
)
TRAINING: dict[str, dict[str, Any]] = {
    **{loss: {"loss": loss} for loss in (*LOSSES, "chunked", "cut")},
    "all kernels": {"liger": True},
    "checkpointed": {"liger": True, "activation_checkpointing": "full"},
    "adapters": {"liger": True, "lora": {"r": 4}},
    "accumulated": {"liger": True, "gradient_accumulation_steps": 3},
    "smoothed": {"label_smoothing": 0.1},
    "packed": {"loss": "chunked", "packed_documents": 4},
    "packed, checkpointed": {"packed_documents": 4, "activation_checkpointing": "full"},
    "reward": {"loss": "reward"},
    "reward, checkpointed": {"loss": "reward", "activation_checkpointing": "full"},
}
ENGINES: dict[str, dict[str, Any]] = {
    "pytorch_ddp": {},
    "fsdp": {},
    "zero 1": {"zero_stage": 1},
    "zero 2": {"zero_stage": 2},
}
WINDOW = {"model_type": "mistral", "sliding_window": 64, "vocab_size": 64}


def equally_high(data: dict[str, Any]) -> None:
    """To the byte: both come from one tape."""
    ledger, asked = rolled_and_written(resolve(read(data).file))
    assert highest(asked) == int(ledger.peak(phases=STEP))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TRAINING)
def test_a_stream_is_as_high_as_its_ledger(name: str, engine: str) -> None:
    """For every engine that runs transformers."""
    kind = "deepspeed" if engine.startswith("zero") else engine
    equally_high(small_run(kind, training=TRAINING[name], engine=ENGINES[engine]))


TIED = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-0.6b", "qwen3-4b", "llama3.2-1b", "llama3.2-3b")
LONG = {"batch_size": 2, "seq_len": 16384, "loss": "chunked"}
VARIANTS = [
    *((name, LONG, 8) for name in TIED),
    *((name, LONG | {"activation_checkpointing": "full"}, 8) for name in TIED),
    *((name, LONG | {"packed_documents": 8}, 8) for name in ("qwen2.5-0.5b", "llama3.2-1b")),
    *(
        (name, LONG | {"activation_checkpointing": "full"}, 2)
        for name in ("qwen3-0.6b", "qwen3-4b")
    ),
]


@pytest.mark.parametrize(("name", "training", "gpus"), VARIANTS)
def test_a_tied_table_under_stage_3(name: str, training: dict[str, Any], gpus: int) -> None:
    """The loss makes the head's gradient, and the embedding's is added to it: all that its backward
    sorts is freed again.
    """
    data = small_run("deepspeed", gpus, training=training, engine={"zero_stage": 3})
    equally_high({**data, "model": {"name": name}})


@pytest.mark.parametrize("loss", ["full", "liger_fused"])
def test_masks_are_alive_in_the_final_norm(loss: str) -> None:
    """Long sequences with a window: the masks are larger than all that the loss takes."""
    training = {"loss": loss, "seq_len": 8192, "batch_size": 1, "optimizer": "sgd"}
    data = small_run("pytorch_ddp", gpus=1, training=training)
    data["model"] = {"config": {**SMALL_LLAMA, **WINDOW, "max_position_embeddings": 8192}}
    equally_high(data)


@pytest.mark.parametrize("tied", [False, True])
def test_stage_3_holds_the_weight_that_the_loss_reads(tied: bool) -> None:
    """It is a parameter of the model, which runs as long as its layers do; a head that is a module
    has its weight only while it runs.
    """
    small = {"zero_stage": 3, "stage3_max_reuse_distance": 1, "stage3_prefetch_bucket_size": 1}
    config = {**SMALL_LLAMA, "vocab_size": 20_000, "tie_word_embeddings": tied}
    held: dict[str, int] = {}
    for loss in ("full", "chunked"):
        data = small_run("deepspeed", training={"loss": loss}, engine=small)
        data["model"] = {"config": config}
        ledger, asked = rolled_and_written(resolve(read(data).file))
        assert highest(asked) == int(ledger.peak(phases=STEP))
        gathered = [e for e in ledger.entries if e.name == "gathered parameters"]
        held[loss] = sum(int(e.bytes) for e in gathered if "backward.0.last" in e.live)
    table = 2 * 20_000 * 256
    assert held["chunked"] - held["full"] == (0 if tied else table)
