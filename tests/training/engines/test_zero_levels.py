"""Levels of equal layers are counted once: they are those of counting each layer."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.estimates.calculator import stage_ledgers
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.deepspeed.rank_stage3 import Stage3Bucket
from tests.golden.stored_runs import run_file

START = "type=deepspeed zero_stage=3 model.name=gpt2 num_gpus=8"
KINDS = (
    "recompute=full r=8",
    "reduce_bucket_size=25000000 gradient_accumulation_steps=3",
    "reduce_bucket_size=16000000 offload_optimizer=cpu",  # a little more than two layers
)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_room_in_the_bucket_have_equal_levels(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that begin with as many bytes, until the bucket is reduced."""
    filled: list[int] = []
    fill = Stage3Bucket.fill

    def count(bucket: Stage3Bucket, gradients: list[int]) -> None:
        filled.append(1)
        fill(bucket, gradients)

    monkeypatch.setattr(Stage3Bucket, "fill", count)
    found = heights(kind)
    assert filled
    monkeypatch.setattr(Stage3Bucket, "has_room", lambda bucket, gradients: False)
    assert heights(kind) == found


def heights(kind: str) -> dict[str, object]:
    """Bytes at each instant, counted anew."""
    forget()
    ledger = stage_ledgers(resolve(read(run_file(f"{START} {kind}")).file))[0]
    return {i.name: ledger.parts(i) for i in ledger.instants}
