"""DeepSpeed with LoRA: what ZeRO-3 does to a frozen model and its adapters."""

from __future__ import annotations

from gpu_mem_calculator.models.arch.adapters import Adapter
from tests.training.engines.test_deepspeed import book


def test_frozen_projections_keep_their_input_in_stage_3() -> None:
    """DeepSpeed's linear saves the input of a frozen weight, too; torch's does not."""
    adapter = Adapter(rank=16, targets=frozenset({"q_proj", "v_proj"}))
    saved = [
        next(dict(e.parts) for e in book(zero_stage=stage, adapter=adapter).entries if e.parts)
        for stage in (2, 3)
    ]
    assert ["mlp.product" in parts for parts in saved] == [False, True]


def test_adapters_stay_wide_under_zero_init() -> None:
    """A model that zero.Init has sharded is not cast, so adapters made in fp32 stay fp32."""
    adapter = Adapter(rank=16, targets=frozenset({"q_proj", "v_proj"}))
    wide, cast = (
        next(
            e.bytes
            for e in book(zero_stage=3, adapter=adapter, zero_init=early).entries
            if e.name == "parameter shards"
        )
        for early in (True, False)
    )
    assert wide == 2 * cast
